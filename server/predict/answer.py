"""Writes the answer to POST /predict. Numbers that JSON cannot write (NaN, Infinity) are written as null."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from hotdelta.errors import PredictionError, RequestError
from server.served_model import Array, ServedVersion

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_ORJSON_DTYPES = frozenset(map(np.dtype, (*_INTEGERS, "float16", "float32", "float64", "bool")))


def write_answer(outputs: Mapping[str, Array], version: ServedVersion, *, rows: int | None) -> bytes:
    """`predictions` for each of so many rows, or `outputs` by name for columns (None).

    Raises RequestError when there are not so many, PredictionError for what JSON cannot write.
    """
    answer: dict[str, Any]
    if rows is None:
        answer = {"outputs": {name: to_json(array) for name, array in outputs.items()}}
    else:
        require_rows(outputs, rows)
        answer = {"predictions": as_rows({name: to_json(array) for name, array in outputs.items()})}
    position = None if version.position is None else str(version.position)
    answer["version"] = {"position": position, "step": version.step}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def require_rows(outputs: Mapping[str, Array], rows: int) -> None:
    """Raises RequestError when an output does not have so many."""
    if any(array.ndim == 0 or len(array) != rows for array in outputs.values()):
        raise RequestError(
            "the outputs of this signature do not have one row for each input row",
            hint="ask with 'inputs' instead",
        )


def as_rows(columns: Mapping[str, Any]) -> Any:
    """An object for each row; with one output its value alone."""
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def to_json(array: Array) -> Any:
    """What orjson writes for it. Raises PredictionError."""
    if array.dtype == object:
        return _texts(array.tolist())
    if array.dtype not in _ORJSON_DTYPES:
        array = _to_float32(array)
    # orjson writes only arrays that have an axis and lie in memory as C has them.
    return np.ascontiguousarray(array) if array.ndim else array.item()


def _to_float32(array: Array) -> Array:
    """bfloat16 and smaller floats, which JSON writers do not know. Of a complex number half would be lost."""
    try:
        if array.dtype.kind != "c":
            return array.astype(np.float32)
    except (TypeError, ValueError):
        pass
    raise PredictionError(
        f"an output is {array.dtype.name}, which cannot be written as JSON",
        hint="return its real and imaginary parts, or a float dtype",
    )


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
