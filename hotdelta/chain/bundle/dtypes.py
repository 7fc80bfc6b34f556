"""The one table of the dtypes that a bundle holds: TensorFlow's number of each, and numpy's dtype with its bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

DTYPES: Mapping[int, str] = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64",
    9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32",
    23: "uint64",
}  # fmt: skip
DTYPE_NUMBERS: Mapping[str, int] = {name: number for number, name in DTYPES.items()}

_NUMPY_STAND_INS = {"bfloat16": "uint16"}


def has_fixed_size(dtype: str) -> bool:
    """Whether tensors of it are read and written here: strings are not, nor what is not in the table."""
    return dtype in DTYPE_NUMBERS and dtype != "string"


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """numpy's own dtype, or for bfloat16, which it lacks, uint16 with the same bits."""
    return np.dtype(_NUMPY_STAND_INS.get(dtype, dtype))


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    return math.prod(shape) * stored_dtype(dtype).itemsize
