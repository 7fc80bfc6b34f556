"""Measures the values of an update, chunk by chunk: no second copy, and never long in one call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from loader.checks.sanity import Figures

Array = npt.NDArray[Any]

CHUNK_VALUES = 128 * 1024


@dataclass(frozen=True, slots=True)
class StackedRows:
    """The rows that several updates have of one variable, one update after the other, and those that they replace.

    `counts`: how many rows each update has.
    """

    new: Array
    old: Array
    counts: Sequence[int]


def has_figures(dtype: np.dtype[Any]) -> bool:
    """Whole numbers, booleans and text are never out of bounds."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def measure(chunks: Iterable[tuple[Array, Array | None]]) -> Figures:
    """The figures of pairs of new rows and, where they are known, the rows that they replace."""
    worst = Figures()
    scratch: Array = np.empty(0)
    for rows, replaced in chunks:
        new, old = _as_rows(rows), None if replaced is None else _as_rows(replaced)
        if scratch.dtype != new.dtype or scratch.size < new.size:
            scratch = np.empty(new.size, new.dtype)
        worst = _worse(worst, _measure_chunk(new, old, scratch[: new.size].reshape(new.shape)))
    return worst


def measure_each(stacked: StackedRows) -> list[Figures]:
    """The figures of each of several small updates, as `measure` finds them, in a few calls for all of them."""
    ends = np.cumsum(stacked.counts, dtype=np.int64)
    found = [Figures()] * len(ends)
    if not len(stacked.new) or not has_figures(stacked.new.dtype):
        return found
    new, old = _as_rows(stacked.new), _as_rows(stacked.old)
    with np.errstate(over="ignore", invalid="ignore"):
        worst = [
            _add_up(np.square(new)),
            _add_up(np.square(new - old)),
            np.abs(new).max(axis=1, initial=0.0),
        ]
    has_rows = np.flatnonzero(stacked.counts)
    starts = ends[has_rows] - np.asarray(stacked.counts)[has_rows]
    columns = [np.maximum.reduceat(values, starts).tolist() for values in worst]
    for update, start, norm_squared, change_squared, largest in zip(
        has_rows.tolist(), starts.tolist(), *columns, strict=True
    ):
        if math.isfinite(norm_squared) and math.isfinite(change_squared):
            found[update] = Figures(0, largest, math.sqrt(norm_squared), math.sqrt(change_squared))
        else:
            end = int(ends[update])
            found[update] = measure(chunked(stacked.new[start:end], stacked.old[start:end]))
    return found


def without_new(old: Array, rows: Array, is_new: npt.NDArray[np.bool_]) -> Array:
    """What rows replace, where rows that came into use replace themselves: what lay there before is no value."""
    if not is_new.any():
        return old
    old = np.array(old)
    old[is_new] = rows[is_new]
    return old


def chunked(new: Array, old: Array | None) -> Iterator[tuple[Array, Array | None]]:
    """Cuts arrays in memory into chunks along their first axis."""
    for start, stop in row_ranges(len(new), rows_per_chunk(new.shape[1:])):
        yield new[start:stop], None if old is None else old[start:stop]


def rows_per_chunk(row_shape: tuple[int, ...]) -> int:
    return rows_within(CHUNK_VALUES, math.prod(row_shape))


def _as_rows(array: Array) -> Array:
    """Two axes, in a dtype whose squares do not overflow where the values do not."""
    rows = array.reshape(len(array), -1)
    return rows if rows.dtype.itemsize >= 4 else rows.astype(np.float32)


def _measure_chunk(new: Array, old: Array | None, scratch: Array) -> Figures:
    with np.errstate(over="ignore", invalid="ignore"):
        norm = _largest_norm(new, scratch)
        change = 0.0 if old is None else _largest_norm(np.subtract(new, old, out=scratch), scratch)
    if math.isfinite(norm) and math.isfinite(change):
        return Figures(0, max(float(new.max(initial=0.0)), -float(new.min(initial=0.0))), norm, change)
    return _measure_closely(new, old)


def _largest_norm(rows: Array, scratch: Array) -> float:
    """NaN or Inf when a value is, or when squares overflow: then look closely. `scratch` may be `rows` itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = _add_up(np.square(rows, out=scratch))
    return math.sqrt(float(squares.max(initial=0.0)))


def _add_up(rows: Array) -> Array:
    # Twice as fast for short rows as einsum or a sum over the second axis.
    sums: Array = rows.dot(np.ones(rows.shape[1], rows.dtype))
    return sums


def _measure_closely(new: Array, old: Array | None) -> Figures:
    """Something is not finite, or very large: what exactly may take its time."""
    is_finite = np.isfinite(new)
    finite = np.where(is_finite, new, 0).astype(np.float64)
    change = 0.0
    if old is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            difference = np.where(is_finite & np.isfinite(old), finite - old, 0)
            change = _largest_norm(difference, np.empty_like(difference))
    return Figures(
        nonfinite=int(is_finite.size - np.count_nonzero(is_finite)),
        max_abs=float(np.abs(finite).max(initial=0.0)),
        max_norm=_largest_norm(finite, np.empty_like(finite)),
        max_change=change,
    )


def _worse(one: Figures, other: Figures) -> Figures:
    return Figures(
        one.nonfinite + other.nonfinite,
        max(one.max_abs, other.max_abs),
        max(one.max_norm, other.max_norm),
        max(one.max_change, other.max_change),
    )
