"""Digests of the parts of a variable: enough to say where two differ, without holding both in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from blake3 import blake3

from hotdelta.chain.bundle_reader import itemsize
from hotdelta.chain.schema import VariableSpec

_CHUNK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One digest for each `chunk_rows` rows; of a variable that is no table, one for all of it."""

    chunk_rows: int
    digests: tuple[bytes, ...]

    def difference(self, other: Fingerprint) -> str | None:
        """Where the first difference is, in words."""
        for index, (mine, theirs) in enumerate(zip(self.digests, other.digests, strict=True)):
            if mine != theirs:
                start = index * self.chunk_rows
                return f"rows {start} to {start + self.chunk_rows - 1}" if self.chunk_rows else "its value"
        return None


def fingerprint_array(value: npt.NDArray[Any], spec: VariableSpec) -> Fingerprint:
    return fingerprint_with(spec, lambda start, stop: value[start:stop], lambda: value)


def fingerprint_tensor(value: tf.Tensor, spec: VariableSpec) -> Fingerprint:
    return fingerprint_with(spec, lambda start, stop: value[start:stop].numpy(), value.numpy)


def fingerprint_variable(variable: tf.Variable, spec: VariableSpec) -> Fingerprint:
    """Of a table, rows are gathered: reading it whole copies it once rows were gathered or scattered."""
    return fingerprint_with(
        spec,
        lambda start, stop: tf.gather(variable, tf.range(start, stop, dtype=tf.int64)).numpy(),
        lambda: variable.read_value().numpy(),
    )


def fingerprint_with(
    spec: VariableSpec,
    read_rows: Callable[[int, int], npt.NDArray[Any]],
    read_all: Callable[[], npt.NDArray[Any]],
) -> Fingerprint:
    """Of whatever can be read by ranges of rows, and whole."""
    if not spec.is_table:
        return Fingerprint(0, (_digest(read_all()),))
    chunk_rows = rows_in_chunk(spec)
    return Fingerprint(chunk_rows, tuple(_digest(read_rows(start, stop)) for start, stop in chunks(spec)))


def chunks(spec: VariableSpec) -> Iterator[tuple[int, int]]:
    step = rows_in_chunk(spec)
    for start in range(0, spec.shape[0], step):
        yield start, min(start + step, spec.shape[0])


def rows_in_chunk(spec: VariableSpec) -> int:
    row_bytes = math.prod(spec.shape[1:]) * itemsize(spec.dtype)
    return max(1, _CHUNK_BYTES // max(1, row_bytes))


def _digest(value: npt.NDArray[Any]) -> bytes:
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return blake3(raw.data).digest()
