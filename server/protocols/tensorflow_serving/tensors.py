"""TensorFlow's tensors as messages: read into the arrays that a signature takes, and written from its outputs.

Without TensorFlow, and without a look at single numbers.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NoReturn

import numpy as np

from hotdelta.chain import TensorSpec
from hotdelta.errors import BodyTooLargeError, PredictionError, RequestError
from server.predict.input_arrays import require_told_shape
from server.protocols.tensorflow_serving.documents import type_name
from server.rpc.messages import PACKED, Message, kind, packed, pool
from server.served_model import Array

# In which list of the message the values of a dtype are, and as what.
_LISTS: dict[str, tuple[str, str]] = {
    "float32": ("float_val", "float32"),
    "float64": ("double_val", "float64"),
    **dict.fromkeys(("int32", "int16", "int8", "uint8", "uint16"), ("int_val", "int32")),
    "int64": ("int64_val", "int64"),
    "uint32": ("uint32_val", "uint32"),
    "uint64": ("uint64_val", "uint64"),
    "bool": ("bool_val", "bool"),
    "complex64": ("scomplex_val", "float32"),
    "complex128": ("dcomplex_val", "float64"),
    "float16": ("half_val", "int32"),
    "bfloat16": ("half_val", "int32"),
    "string": ("string_val", "object"),
}
_BITS = ("float16", "bfloat16")
_COMPLEX = ("complex64", "complex128")


def to_array(tensor: TensorSpec, message: Message, *, max_bytes: int) -> Array:
    """An array of exactly the dtype of `tensor`, with a shape that fits.

    `max_bytes`: how large it may be, since a few bytes can mean many. Raises RequestError.
    """
    _require_type(tensor, message)
    shape = _shape(tensor, message)
    dtype = np.dtype(object) if tensor.dtype == "string" else _numpy_dtype(tensor)
    count = math.prod(shape)
    if count * dtype.itemsize > max_bytes:
        raise BodyTooLargeError(
            f"input {tensor.name!r} of shape {list(shape)} is larger than {max_bytes} bytes",
            max_bytes=max_bytes,
            hint="send fewer rows, or raise --max-body-bytes",
        )
    # Once: each look makes a copy of it.
    content = message.tensor_content
    if content:
        return _from_content(tensor, content, dtype, count).reshape(shape)
    return _filled(tensor, _values(tensor, message, dtype), count).reshape(shape)


def to_message(name: str, array: Array) -> Message:
    """Numbers in lists, as TensorFlow Serving writes them. Raises PredictionError."""
    dtype = _name_of(array.dtype)
    if dtype not in _LISTS:
        raise PredictionError(f"output {name!r} is {dtype}, which cannot be written as a tensor")
    shape = {"dim": [{"size": size} for size in array.shape]}
    message = kind("tensorflow.TensorProto")(dtype=type_name(dtype), tensor_shape=shape)
    if dtype in PACKED:
        message.MergeFromString(packed(message, _LISTS[dtype][0], array))
        return message
    values = array.reshape(-1)
    if dtype in _BITS:
        values = values.view(np.uint16)
    elif dtype in _COMPLEX:
        values = values.view(_LISTS[dtype][1])
    getattr(message, _LISTS[dtype][0]).extend(_texts(values) if dtype == "string" else values.tolist())
    return message


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Kept: numpy makes the name of a dtype anew each time."""
    return "string" if dtype.kind == "O" else dtype.name


@functools.cache
def _number_of(dtype: str) -> int | None:
    """What the messages have for a dtype; None for one that cannot be given."""
    values = pool().FindEnumTypeByName("tensorflow.DataType").values_by_name
    return values[type_name(dtype)].number if dtype in _LISTS else None


def _require_type(tensor: TensorSpec, message: Message) -> None:
    wanted = _number_of(tensor.dtype)
    if wanted is None:
        _refuse(tensor, f"is {tensor.dtype}, which cannot be given as a tensor")
    if message.dtype != wanted:
        given = pool().FindEnumTypeByName("tensorflow.DataType").values_by_number.get(message.dtype)
        name = given.name if given else message.dtype
        _refuse(tensor, f"is {name}, the signature wants {type_name(tensor.dtype)}")


def _shape(tensor: TensorSpec, message: Message) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in message.tensor_shape.dim)
    if message.tensor_shape.unknown_rank:
        _refuse(tensor, "does not say its shape")
    require_told_shape(tensor, shape)
    return shape


def _numpy_dtype(tensor: TensorSpec) -> np.dtype[Any]:
    # TensorFlow, which is there when a model is, has told numpy of bfloat16.
    return np.dtype(tensor.dtype)


def _from_content(tensor: TensorSpec, content: bytes, dtype: np.dtype[Any], count: int) -> Array:
    if tensor.dtype == "string":
        _refuse(tensor, "has its strings in tensor_content; send them in string_val")
    if len(content) != count * dtype.itemsize:
        _refuse(tensor, f"has {len(content)} bytes, its shape needs {count * dtype.itemsize}")
    return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype)


def _values(tensor: TensorSpec, message: Message, dtype: np.dtype[Any]) -> Array:
    """As many as there are, in one row."""
    field, stored = _LISTS[tensor.dtype]
    given = getattr(message, field)
    if tensor.dtype == "string":
        texts = np.empty(len(given), object)
        texts[:] = list(given)
        return texts
    values = np.array(given, stored)
    if tensor.dtype in _BITS:
        bits = values.astype(np.uint16)
        _require_same(tensor, values, bits)
        return bits.view(dtype)
    if tensor.dtype in _COMPLEX:
        if len(values) % 2:
            _refuse(tensor, "lacks half of a complex number")
        return values.view(dtype)
    converted = values.astype(dtype, copy=False)
    if converted is not values:
        _require_same(tensor, values, converted)
    return converted


def _require_same(tensor: TensorSpec, values: Array, converted: Array) -> None:
    if not np.array_equal(values, converted):
        _refuse(tensor, f"holds numbers that do not fit into {tensor.dtype}")


def _filled(tensor: TensorSpec, values: Array, count: int) -> Array:
    """The last value fills what is left; where there is none, it is zero or empty."""
    if len(values) > count:
        _refuse(tensor, f"has {len(values)} values, its shape needs {count}")
    if len(values) == count:
        return values
    filled = np.empty(count, values.dtype)
    filled[: len(values)] = values
    filled[len(values) :] = values[-1] if len(values) else b"" if values.dtype == object else 0
    return filled


def _texts(values: Array) -> list[bytes]:
    return [text if isinstance(text, bytes) else str(text).encode() for text in values]


def _refuse(tensor: TensorSpec, problem: str) -> NoReturn:
    raise RequestError(f"input {tensor.name!r} {problem}")
