"""Writes answers as TensorFlow Serving does: names where there are several outputs, NaN and Infinity as bare tokens."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import orjson

from server.predict.answer import as_rows, require_rows, to_json
from server.protocols.tensorflow_serving.examples import Classified
from server.served_model import Array

# String outputs of such a name hold bytes, and are always written so.
_BYTES_SUFFIX = "_bytes"


def write_answer(outputs: Mapping[str, Array], *, rows: int | None) -> bytes:
    """`predictions` for each of so many rows, or `outputs` for columns (None); one output has no name.

    Raises RequestError when there are not so many rows, PredictionError for what JSON cannot write.
    """
    if rows is not None:
        require_rows(outputs, rows)
    columns = {name: _column(name, array) for name, array in outputs.items()}
    if rows is not None:
        answer = {"predictions": as_rows(columns)}
    else:
        answer = {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}
    return _dump(answer, outputs.values())


def write_classes(found: Classified) -> bytes:
    """`results`: for each example pairs of a label and a score; "" and 0 for what the signature does not give."""
    labels = None if found.labels is None else to_json(found.labels)
    scores = found.scores
    if labels is None:
        rows = [[("", score) for score in row] for row in ([] if scores is None else scores)]
    elif scores is None:
        rows = [[(label, 0.0) for label in row] for row in labels]
    else:
        rows = [list(zip(*row, strict=True)) for row in zip(labels, scores, strict=True)]
    return _dump({"results": rows}, () if scores is None else (scores,))


def write_values(values: Array) -> bytes:
    """`results`: a number for each example."""
    return _dump({"results": to_json(values)}, (values,))


def _dump(answer: Any, arrays: Iterable[Array]) -> bytes:
    """`arrays`: those whose numbers are in it."""
    if any(_has_nonfinite(array) for array in arrays):
        return json.dumps(answer, default=_nested, separators=(",", ":")).encode()
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _column(name: str, array: Array) -> Any:
    if array.dtype == object and name.endswith(_BYTES_SUFFIX):
        return _encoded(array.tolist())
    return to_json(array)


def _encoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    return {"b64": base64.b64encode(value).decode()}


def _has_nonfinite(array: Array) -> bool:
    return array.dtype.kind not in "biuO" and not np.isfinite(array.astype(np.float32, copy=False)).all()


def _nested(column: Any) -> Any:
    """Lists of the numbers that orjson writes, with those that it cannot write where they belong."""
    if isinstance(column, np.floating):
        return float(str(column))
    if isinstance(column, np.generic):
        return column.item()
    values = column.reshape(-1)
    is_finite = np.isfinite(values)
    numbers = orjson.loads(orjson.dumps(np.where(is_finite, values, 0), option=orjson.OPT_SERIALIZE_NUMPY))
    for place in np.flatnonzero(~is_finite):
        numbers[place] = float(values[place])
    return np.array(numbers, object).reshape(column.shape).tolist()
