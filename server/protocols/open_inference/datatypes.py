"""The names that the protocol has for dtypes, and how tensors are written as bytes."""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np

from hotdelta.chain import TensorSpec
from hotdelta.errors import PredictionError, RequestError
from server.served_model import Array

BYTES = "BYTES"
_NAMES = {
    "bool": "BOOL",
    **{f"{kind}int{bits}": f"{kind.upper()}INT{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    "string": BYTES,
}
_LENGTH = struct.Struct("<I")


def datatype_of(dtype: str) -> str:
    """What the protocol calls a dtype of a signature; one that it has no name for keeps its own."""
    return _NAMES.get(dtype, dtype)


def datatype_of_array(name: str, array: Array) -> str:
    """Raises PredictionError."""
    found = _datatype_of_dtype(array.dtype)
    if found is None:
        raise PredictionError(
            f"output {name!r} is {array.dtype.name}, for which the protocol has no name",
            hint="return its real and imaginary parts, or another dtype",
        )
    return found


@functools.cache
def _datatype_of_dtype(dtype: np.dtype[Any]) -> str | None:
    """Kept: numpy makes the name of a dtype anew each time."""
    return BYTES if dtype.kind == "O" else _NAMES.get(dtype.name)


def to_bytes(array: Array) -> bytes:
    """Little-endian, row after row; before each text its length in four bytes."""
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1)]
    return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))


def from_bytes(tensor: TensorSpec, data: memoryview, shape: tuple[int, ...]) -> Array:
    """An array of its own memory. Raises RequestError when there are not as many bytes as the shape needs."""
    count = int(np.prod(shape, dtype=object))
    if tensor.dtype == "string":
        return _texts(tensor, data, count).reshape(shape)
    dtype = _numpy_dtype(tensor)
    if len(data) != count * dtype.itemsize:
        raise RequestError(
            f"input {tensor.name!r} has {len(data)} bytes, its shape {list(shape)} needs {count * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _numpy_dtype(tensor: TensorSpec) -> np.dtype[Any]:
    try:
        return np.dtype(tensor.dtype)
    except TypeError as error:
        raise RequestError(
            f"input {tensor.name!r} is {tensor.dtype}, which cannot be sent as bytes", hint="send it as JSON"
        ) from error


def _texts(tensor: TensorSpec, data: memoryview, count: int) -> Array:
    texts: list[bytes] = []
    place = 0
    while place + _LENGTH.size <= len(data) and len(texts) < count:
        (length,) = _LENGTH.unpack_from(data, place)
        place += _LENGTH.size
        texts.append(bytes(data[place : place + length]))
        place += length
    if len(texts) != count or place != len(data):
        raise RequestError(
            f"the bytes of input {tensor.name!r} are not {count} texts",
            hint="write before each text its length in four bytes, little-endian",
        )
    array = np.empty(count, object)
    array[:] = texts
    return array
