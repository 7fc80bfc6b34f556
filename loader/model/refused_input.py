"""Says what is wrong with a request that the model refused, in words of the request: inputs, tables, ids.

Only for requests that have failed: nothing of this is looked at before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.errors import RequestError
from hotdelta.export_metadata import ExportMetadata
from loader.model.session_graph import first_line

Array = npt.NDArray[Any]

# As the operations that gather rows say it.
_OUT_OF_RANGE = (
    re.compile(r"indices\S* = (?P<id>-?\d+) is not in \[0, (?P<rows>\d+)\)"),
    re.compile(r"indices\S* = \[(?P<id>-?\d+)\] does not index into param shape \[(?P<rows>\d+)"),
)
_NODE = re.compile(r"{{function_node (?P<function>[^}]+)}}\s*{{node (?P<node>[^}]+)}}")
_ABOUT_SHAPES = re.compile(r"shape|dimension|broadcast|incompatible|concat", re.IGNORECASE)
_MAX_NAMED = 5


def explain(error: tf.errors.OpError, feeds: Mapping[str, Array], metadata: ExportMetadata) -> RequestError:
    """What to answer. Where it cannot be told, with TensorFlow's own first line; a guess never takes its place."""
    for pattern in _OUT_OF_RANGE:
        if found := pattern.search(error.message):
            return _out_of_range(int(found["id"]), int(found["rows"]), error.message, feeds, metadata)
    reason = first_line(error)
    sizes = {name: len(array) for name, array in feeds.items() if array.ndim}
    hint = ""
    if len(set(sizes.values())) > 1 and _ABOUT_SHAPES.search(reason):
        shown = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        hint = f"the inputs have different numbers of rows, which may be why: {shown}"
    return RequestError(f"the model refuses this input: {reason}", hint=hint)


def _out_of_range(
    number: int, rows: int, message: str, feeds: Mapping[str, Array], metadata: ExportMetadata
) -> RequestError:
    tables = _tables(rows, message, metadata)
    place = (
        f"in table {_either(tables)}, which has {rows} rows"
        if tables
        else f"among the {rows} rows that it is looked up in"
    )
    return RequestError(
        f"id {number} is not {place}", hint=f"ids go from 0 to {rows - 1}; {_holders(number, feeds)}"
    )


def _holders(number: int, feeds: Mapping[str, Array]) -> str:
    """Only where the number is: exports do not say which input a look-up gets its ids from."""
    holders = [
        repr(name) for name, array in feeds.items() if array.dtype.kind in "iu" and np.any(array == number)
    ]
    match holders:
        case []:
            return "no integer input holds this number: the model makes it"
        case [holder]:
            return f"input {holder} holds this number"
        case _:
            return f"inputs {', '.join(holders[:_MAX_NAMED])} hold this number"


def _tables(rows: int, message: str, metadata: ExportMetadata) -> list[str]:
    """The one that was looked up in, if the export has recorded it. Older ones record none: all with so many rows."""
    if metadata.lookups:
        place = _NODE.search(message)
        key = metadata.lookups.get(f"{place['function']}/{place['node']}") if place else None
        return [repr(key)] if key is not None else []
    return [repr(table.key) for table in metadata.schema.tables if table.shape[0] == rows]


def _either(names: list[str]) -> str:
    shown = names[:_MAX_NAMED] + (["another"] if len(names) > _MAX_NAMED else [])
    return " or ".join(shown)
