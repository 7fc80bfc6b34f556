"""Digests of the parts of a variable: enough to say where two differ, without holding both in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from blake3 import blake3

from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.bundle.row_memory import flat_bytes, row_ranges, rows_within
from hotdelta.chain.format.schema import VariableSpec

# Not more: what TensorFlow allocates for a part, malloc keeps, in each of its threads.
CHUNK_BYTES = 4 * 1024 * 1024

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One digest for each `chunk_rows` rows; of a variable that is no table, one for all of it.

    `rows`: how many a table has; a growing one has those that are in use.
    """

    chunk_rows: int
    digests: tuple[bytes, ...]
    rows: int = 0

    def difference(self, other: Fingerprint) -> str | None:
        """Where the first difference is, in words."""
        if self.rows != other.rows:
            return f"{other.rows} rows, and not {self.rows}"
        for index, (mine, theirs) in enumerate(zip(self.digests, other.digests, strict=True)):
            if mine != theirs:
                start = index * self.chunk_rows
                return f"rows {start} to {start + self.chunk_rows - 1}" if self.chunk_rows else "its value"
        return None


Fingerprints = Mapping[str, Fingerprint]


class Fingerprinting:
    """The fingerprint of a variable that passes by in slices of any length, from its first row to its last."""

    def __init__(self, spec: VariableSpec) -> None:
        self._chunk_rows = _chunk_rows(spec) if spec.is_table else 0
        self._digests: list[bytes] = []
        self._hasher = _new_hasher()
        self._rows_hashed = 0
        self._rows = 0

    def add(self, values: Array) -> None:
        if not self._chunk_rows:
            self._hash(values)
            return
        self._rows += len(values)
        while len(values):
            room = self._chunk_rows - self._rows_hashed
            self._hash(values[:room])
            self._rows_hashed += len(values[:room])
            values = values[room:]
            if self._rows_hashed == self._chunk_rows:
                self._close()

    def result(self) -> Fingerprint:
        """The fingerprint. Call it after the last slice."""
        if self._rows_hashed or not self._chunk_rows:
            self._close()
        return Fingerprint(self._chunk_rows, tuple(self._digests), self._rows)

    def _hash(self, values: Array) -> None:
        self._hasher.update(flat_bytes(values).data)

    def _close(self) -> None:
        self._digests.append(self._hasher.digest())
        self._hasher, self._rows_hashed = _new_hasher(), 0


def _new_hasher() -> blake3:
    return blake3(max_threads=blake3.AUTO)


def fingerprint(spec: VariableSpec, slices: Iterable[Array]) -> Fingerprint:
    """The fingerprint of a variable, given all its slices in order."""
    passing = Fingerprinting(spec)
    for values in slices:
        passing.add(values)
    return passing.result()


def value_slices(variable: tf.Variable, spec: VariableSpec) -> Iterator[Array]:
    """The value of a variable in slices that are not copied.

    Not by gathers: the first one makes every later whole read of the variable copy it, and a stock Keras layer that
    goes on training reads it whole at each step.
    """
    value = variable.read_value()
    return slices_with(spec, lambda start, stop: np.asarray(value[start:stop]), lambda: np.asarray(value))


def slices_with(
    spec: VariableSpec, read_rows: Callable[[int, int], Array], read_all: Callable[[], Array]
) -> Iterator[Array]:
    """The slices of a variable, read with these functions: a table by ranges of rows, anything else whole."""
    if not spec.is_table:
        yield read_all()
        return
    for start, stop in row_ranges(spec.shape[0], _chunk_rows(spec)):
        yield read_rows(start, stop)


def _chunk_rows(spec: VariableSpec) -> int:
    return rows_within(CHUNK_BYTES, tensor_bytes(spec.dtype, spec.shape[1:]))
