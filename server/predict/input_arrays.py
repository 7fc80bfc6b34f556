"""Turns JSON values into the arrays that a signature takes, or says exactly what is wrong with them.

JSON integers are fine for float inputs; floats are refused for integer inputs, and booleans are never numbers.
"""

from __future__ import annotations

import base64
import binascii
import math
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hotdelta.chain import TensorSpec
from hotdelta.errors import RequestError

Array = npt.NDArray[Any]

_MAX_RANK = 32
_LISTS = {list}
# More values than any memory holds, and fewer than numpy can count in bytes.
_MAX_SIZE = 2**48
_ALLOWED: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}}
_WORDS = {
    bool: "booleans", int: "integers", float: "floats", str: "strings", dict: "objects", type(None): "null",
}  # fmt: skip


def to_array(tensor: TensorSpec, value: Any) -> Array:
    """An array of exactly the dtype of `tensor`, with a shape that fits. Raises RequestError."""
    array = _to_array(tensor, value)
    # JSON has no infinity, so one that is here now was a number too large for this dtype.
    if array.dtype.kind not in "biuO" and not np.isfinite(array).all():
        _refuse(tensor, f"holds numbers that do not fit into {tensor.dtype}")
    return array


def to_array_with_nonfinite(tensor: TensorSpec, value: Any) -> Array:
    """The same for a JSON that may write NaN and Infinity, which are numbers of every float dtype."""
    array = _to_array(tensor, value)
    if array.dtype.kind not in "biuO":
        is_too_large = ~np.isfinite(array) & np.isfinite(np.array(value, np.float64))
        if is_too_large.any():
            _refuse(tensor, f"holds numbers that do not fit into {tensor.dtype}")
    return array


def _to_array(tensor: TensorSpec, value: Any) -> Array:
    if isinstance(value, np.ndarray):
        array = _of_dtype(tensor, value)
    elif tensor.dtype == "string":
        array = _to_strings(tensor, value, _leaf_types(tensor, value, _MAX_RANK))
    elif (flat := _flatten(value)) is not None:
        shape, values, types = flat
        array = _to_numbers(tensor, values, types).reshape(shape)
    else:
        array = _to_numbers(tensor, value, _leaf_types(tensor, value, _MAX_RANK))
    require_shape(tensor, array.shape)
    return array


def _of_dtype(tensor: TensorSpec, value: Array) -> Array:
    """From int64, or float64 that were not all integers. Raises RequestError, also for what cannot be done exactly."""
    dtype = _numpy_dtype(tensor)
    if dtype.kind in "iu" and value.dtype.kind == "i":
        array = value.astype(dtype, copy=False)
        if array is not value and not np.array_equal(array, value):
            _refuse(tensor, f"holds numbers that do not fit into {tensor.dtype}")
        return array
    if dtype.kind != "f":
        _refuse(tensor, f"is {tensor.dtype}, and {value.dtype} was given")
    with np.errstate(over="ignore"):
        # By way of float64, as a number of Python goes.
        return value.astype(np.float64, copy=False).astype(dtype, copy=False)


def _flatten(value: Any) -> tuple[list[int], list[Any], set[type]] | None:
    """The shape of nested lists, all that is in them and its types, at the speed of C; None when they have none."""
    shape: list[int] = []
    level, types = [value], {type(value)}
    while types == _LISTS and len(shape) < _MAX_RANK:
        sizes = set(map(len, level))
        if len(sizes) > 1:
            return None
        shape += sizes
        level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
        types = set(map(type, level))
    return None if list in types or not shape else (shape, level, types)


def require_shape(tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raises RequestError."""
    if tensor.shape is not None and not _fits(shape, tensor.shape):
        _refuse(tensor, f"has shape {list(shape)}, the signature wants {show_shape(tensor.shape)}")


def require_told_shape(tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    """Of one that a client tells beside the values: it may be no shape at all. Raises RequestError."""
    if any(size < 0 for size in shape) or math.prod(size for size in shape if size) > _MAX_SIZE:
        _refuse(tensor, f"has the shape {list(shape)}, which no array has")
    require_shape(tensor, shape)


def show_shape(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _leaf_types(tensor: TensorSpec, value: Any, depth: int) -> set[type]:
    """The types of all values that are not lists; looked at list by list, at the speed of C."""
    if not isinstance(value, list):
        return {type(value)}
    types = set(map(type, value))
    if list not in types:
        return types
    if len(types) > 1:
        _refuse(tensor, "is ragged: a list holds both values and lists")
    if depth == 1:
        _refuse(tensor, f"is nested more than {_MAX_RANK} levels deep")
    found: set[type] = set()
    for item in value:
        found |= _leaf_types(tensor, item, depth - 1)
    return found


def _to_numbers(tensor: TensorSpec, value: Any, types: set[type]) -> Array:
    dtype = _numpy_dtype(tensor)
    allowed = _ALLOWED.get(dtype.kind, {int, float})
    if not types <= allowed:
        wrong = sorted(_WORDS.get(kind, kind.__name__) for kind in types - allowed)
        _refuse(tensor, f"holds {' and '.join(wrong)}, the signature wants {tensor.dtype}")
    try:
        if dtype.kind in "biu":
            array = np.array(value, dtype)
        else:
            with np.errstate(over="ignore"):
                array = np.array(value, dtype)
    except OverflowError:
        _refuse(tensor, f"holds numbers that do not fit into {tensor.dtype}")
    except ValueError:
        _refuse(tensor, _ragged(value))
    return array


def _numpy_dtype(tensor: TensorSpec) -> np.dtype[Any]:
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf" and tensor.dtype != "bfloat16":
        _refuse(tensor, f"is {tensor.dtype}, which cannot be given as JSON")
    return dtype


def _to_strings(tensor: TensorSpec, value: Any, types: set[type]) -> Array:
    if not types <= {str, dict}:
        wrong = sorted(_WORDS.get(kind, kind.__name__) for kind in types - {str, dict})
        _refuse(tensor, f"holds {' and '.join(wrong)}, the signature wants strings")
    shape = _shape_of(value)
    if not _has_shape(value, shape):
        # NumPy would put lists into an array of objects.
        _refuse(tensor, _ragged(value))
    array = np.empty(shape, object)
    array[...] = _encode(tensor, value)
    return array


def _ragged(value: Any) -> str:
    """Where two lists that should be equally long are not: the first such place."""
    level = [value]
    while level and all(isinstance(each, list) for each in level):
        sizes = [len(each) for each in level]
        other = next((number for number, size in enumerate(sizes) if size != sizes[0]), None)
        if other is not None:
            return f"is ragged: its rows have different lengths, one has {sizes[0]} values, another {sizes[other]}"
        level = [item for each in level for item in each]
    return "is ragged: its rows have different lengths"


def _encode(tensor: TensorSpec, value: Any) -> Any:
    if isinstance(value, list):
        return [_encode(tensor, item) for item in value]
    if isinstance(value, str):
        return value.encode()
    if value.keys() != {"b64"} or not isinstance(value["b64"], str):
        _refuse(tensor, 'holds an object that is not {"b64": "..."}')
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError) as error:
        _refuse(tensor, f"holds bytes that are not base64: {error}")


def _shape_of(value: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    if not shape or not isinstance(value, list):
        return not shape and not isinstance(value, list)
    return len(value) == shape[0] and all(_has_shape(item, shape[1:]) for item in value)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    if len(shape) != len(wanted):
        return False
    for size, wanted_size in zip(shape, wanted, strict=True):
        if wanted_size is not None and size != wanted_size:
            return False
    return True


def _refuse(tensor: TensorSpec, problem: str) -> NoReturn:
    raise RequestError(f"input {tensor.name!r} {problem}")
