"""Turns the inputs of a request into the arrays that a signature takes, or says what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import RequestError
from hotdelta.signature_calls import array_dtype

Array = npt.NDArray[Any]


def prepare_feeds(spec: SignatureSpec, feeds: Mapping[str, Any]) -> dict[str, Array]:
    """One array per input, with exactly its dtype and a shape that fits. Raises RequestError."""
    wanted = {tensor.name for tensor in spec.inputs}
    if feeds.keys() != wanted:
        raise _wrong_names(wanted, set(feeds))
    return {tensor.name: _prepare(tensor, feeds[tensor.name]) for tensor in spec.inputs}


def _prepare(tensor: TensorSpec, value: Any) -> Array:
    array = value if isinstance(value, np.ndarray) else _to_array(tensor, value)
    if tensor.dtype == "string":
        array = _to_strings(tensor, array)
    elif array.dtype != (dtype := array_dtype(tensor.dtype)):
        array = _to_dtype(tensor, array, dtype)
    if tensor.shape is not None and not _fits(array.shape, tensor.shape):
        raise RequestError(
            f"input {tensor.name!r} has shape {list(array.shape)}, the signature wants {_show(tensor.shape)}"
        )
    return array


def _to_array(tensor: TensorSpec, value: Any) -> Array:
    try:
        return np.asarray(value, object if tensor.dtype == "string" else None)
    except (ValueError, OverflowError) as error:
        raise RequestError(f"input {tensor.name!r} is ragged or too large: {error}") from error


def _to_dtype(tensor: TensorSpec, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.size == 0 and array.dtype == np.float64:
        return array.astype(dtype)
    is_number = array.dtype.kind in "iuf" or array.dtype.kind == "V"
    if not is_number or dtype.kind == "b" or (dtype.kind in "iu" and array.dtype.kind not in "iu"):
        raise RequestError(
            f"input {tensor.name!r} holds {array.dtype.name}, the signature wants {tensor.dtype}"
        )
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
            raise RequestError(f"input {tensor.name!r} holds numbers that do not fit into {tensor.dtype}")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _to_strings(tensor: TensorSpec, array: Array) -> Array:
    if array.dtype.kind in "US":
        return array.astype(object)
    found = {type(item).__name__ for item in array.flat} - {"str", "bytes"}
    if array.dtype != object or found:
        wrong = ", ".join(sorted(found)) or array.dtype.name
        raise RequestError(f"input {tensor.name!r} holds {wrong}, the signature wants strings")
    return array


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(b in (None, a) for a, b in zip(shape, wanted, strict=True))


def _show(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _wrong_names(wanted: set[str], given: set[str]) -> RequestError:
    missing, unknown = sorted(wanted - given), sorted(given - wanted)
    problems = [f"input {missing[0]!r} is missing"] if missing else []
    problems += [f"input {unknown[0]!r} is unknown"] if unknown else []
    return RequestError(", ".join(problems), hint=f"inputs: {', '.join(sorted(wanted)) or 'none'}")
