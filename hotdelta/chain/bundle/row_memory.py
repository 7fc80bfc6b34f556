"""Rows in memory: how many of them so many bytes are, in which ranges to take them, what differs, and their hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]

# What is compared at a time, so that the outcome stays in the cache.
_COMPARED_BYTES = 8 * 1024 * 1024
_SEED = 0x9E3779B97F4A7C15


def rows_within(max_bytes: int, row_bytes: int) -> int:
    """How many rows of so many bytes are no more than `max_bytes`; one at least."""
    return max(1, max_bytes // max(1, row_bytes))


def row_ranges(rows: int, count: int) -> Iterator[tuple[int, int]]:
    """All rows, `count` at a time: the first of each range, and the one behind its last."""
    for first in range(0, rows, count):
        yield first, min(first + count, rows)


def flat_bytes(values: Array) -> Bytes:
    """The bytes of an array; memoryview itself does not know bfloat16."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def byte_rows(values: Array) -> Bytes:
    """The same memory as one line of bytes per row."""
    return (
        flat_bytes(values).reshape(len(values), -1) if values.size else np.empty((len(values), 0), np.uint8)
    )


def is_same_bits(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def differing_rows(one: Array, other: Array) -> npt.NDArray[np.bool_]:
    """Which rows of two arrays differ, by bit pattern: NaN equals itself, and -0.0 is not 0.0."""
    old, new = _words(byte_rows(one)), _words(byte_rows(other))
    differs = np.zeros(len(old), np.bool_)
    for first, end in row_ranges(len(old), rows_within(_COMPARED_BYTES, old.itemsize * old.shape[1])):
        np.any(old[first:end] != new[first:end], axis=1, out=differs[first:end])
    return differs


def hash_rows(rows: Array) -> Hashes:
    """One 64-bit hash per row, of its bits: the words of the row times random odd numbers, summed modulo 2**64.

    A change of one word always shows; one of several is missed once in 2**64. As a product of a matrix and a vector it
    costs a tenth of anything that numpy does word by word.
    """
    lines = byte_rows(rows)
    padding = -lines.shape[1] % 8
    if padding:
        lines = np.pad(lines, ((0, 0), (0, padding)))
    words = lines.view(np.uint64)
    random = np.random.default_rng(_SEED)
    hashes: Hashes = words @ (random.integers(0, 2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1)
    return hashes


def _words(rows: Bytes) -> Array:
    """View lines of bytes as the widest words that fit: comparing 64 bits at a time is eight times as fast."""
    for width in (np.uint64, np.uint32, np.uint16):
        if rows.shape[1] and rows.shape[1] % width().itemsize == 0:
            return rows.view(width)
    return rows
