"""Which ids the parts of a partitioned table hold: read off the look-ups, used to move rows to other parts.

mod: id i is row i // P of part i % P. div: the parts hold the ids one after another. Rows of a chain lie part after
part, so under div a row's number is its id, and under mod it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.errors import ModelMismatchError
from hotdelta.logs import counted

MOD, DIV = "mod", "div"

_DIVISIONS = frozenset({"FloorDiv", "Div", "TruncateDiv"})


def find_strategy(lookups: Iterable[Any]) -> str:
    """mod or div when every look-up in a partitioned table agrees, empty when nothing is known."""
    found = {_strategy_of(operation) for operation in lookups}
    return found.pop() if len(found) == 1 else ""


def _strategy_of(lookup: Any) -> str:
    """tf.nn.embedding_lookup deals ids out with a DynamicPartition, whose second input is the number of the part."""
    dealer = _behind(lookup.inputs[1], frozenset({"Identity", "Reshape", "Cast"}))
    if dealer.type != "DynamicPartition":
        return ""
    assignment = _behind(dealer.inputs[1], frozenset({"Identity", "Cast"}))
    if assignment.type in ("FloorMod", "Mod"):
        return MOD
    is_div = assignment.type == "Maximum" and all(
        tensor.op.type in _DIVISIONS for tensor in assignment.inputs
    )
    return DIV if is_div else ""


def _behind(tensor: Any, passing: frozenset[str]) -> Any:
    while tensor.op.type in passing:
        tensor = tensor.op.inputs[0]
    return tensor.op


def moved_rows(
    key: str, *, saved: Sequence[int], saved_strategy: str, live: Sequence[int], live_strategy: str
) -> npt.NDArray[np.int64] | None:
    """For each row of the live layout the row of the saved layout that has its id; None when they are the same.

    Raises ModelMismatchError when the layouts differ and a strategy is not known.
    """
    rows = sum(saved) or sum(live)
    saved_parts, live_parts = tuple(saved) or (rows,), tuple(live) or (rows,)
    if saved_parts == live_parts and (saved_strategy == live_strategy or len(live_parts) == 1):
        return None
    for parts, strategy in ((saved_parts, saved_strategy), (live_parts, live_strategy)):
        if len(parts) > 1 and not strategy:
            raise ModelMismatchError(
                f"table {key!r} was saved in {counted(len(saved_parts), 'part')} and is built in {len(live_parts)}, "
                "and which ids its parts hold is not known",
                problems=(
                    f"{key}: {counted(len(saved_parts), 'part')} saved, {len(live_parts)} built, strategy unknown",
                ),
                hint="look it up with tf.nn.embedding_lookup, or build it with as many parts as it was saved with",
            )
    saved_row_of_id = np.empty(rows, np.int64)
    saved_row_of_id[_ids_of_rows(saved_parts, saved_strategy)] = np.arange(rows)
    moved: npt.NDArray[np.int64] = saved_row_of_id[_ids_of_rows(live_parts, live_strategy)]
    return moved


def _ids_of_rows(parts: Sequence[int], strategy: str) -> npt.NDArray[np.int64]:
    if len(parts) == 1 or strategy == DIV:
        return np.arange(sum(parts), dtype=np.int64)
    return np.concatenate(
        [np.arange(rows, dtype=np.int64) * len(parts) + part for part, rows in enumerate(parts)]
    )
