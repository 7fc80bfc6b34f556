"""Writes the answer to POST /predict. Numbers that JSON cannot write (NaN, Infinity) are written as null."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from hotdelta.errors import PredictionError
from server.served_model import Array, ServedVersion

_ORJSON_DTYPES = frozenset(
    [
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ]
)


def write_answer(outputs: Mapping[str, Array], version: ServedVersion, *, is_rows: bool) -> bytes:
    """`outputs` by name for columns, `predictions` row by row for rows. Raises PredictionError."""
    answer: dict[str, Any]
    if is_rows:
        answer = {"predictions": _to_rows(outputs)}
    else:
        answer = {"outputs": {name: _to_json(array) for name, array in outputs.items()}}
    answer["version"] = {"position": str(version.position), "step": version.step}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _to_rows(outputs: Mapping[str, Array]) -> Any:
    sizes = {len(array) if array.ndim else -1 for array in outputs.values()}
    if len(sizes) != 1 or -1 in sizes:
        raise PredictionError(
            "the outputs of this signature do not have one row for each input row",
            hint="ask with 'inputs' instead",
        )
    columns = {name: _to_json(array) for name, array in outputs.items()}
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _to_json(array: Array) -> Any:
    if array.dtype == object:
        return _texts(array.tolist())
    if array.dtype.name not in _ORJSON_DTYPES:
        array = array.astype(np.float32)
    # orjson writes only arrays that have an axis and lie in memory as C has them.
    return np.ascontiguousarray(array) if array.ndim else array.item()


def _texts(value: Any) -> Any:
    """Text where the bytes are text, else `{"b64": ...}`."""
    if isinstance(value, list):
        return [_texts(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
