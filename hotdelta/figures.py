"""Counts for whoever watches: plain lists and numbers, so that the thread that counts pays next to nothing.

Each figure is written by one thread, or with one lock held, and read by any.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

# Of answers: fine enough to tell percentiles of a few milliseconds.
ANSWER_SECONDS = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
# Of updates and saves: from a copy of a few rows to data that waited for hours.
STAGE_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)
BATCH_SIZES = tuple(float(2**power) for power in range(13))


@dataclass(frozen=True, slots=True)
class Counted:
    """A histogram at one moment. `counts` has one more than `bounds`: of what was larger than all of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Histogram:
    """How often a value was at most each of `bounds`, which ascend."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """About 0.2 us."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += times * value

    def add(self, counts: Sequence[int], total: float) -> None:
        """What another histogram with the same bounds has counted."""
        self._counts = [mine + other for mine, other in zip(self._counts, counts, strict=True)]
        self._sum += total

    def read(self) -> Counted:
        return Counted(self._bounds, tuple(self._counts), self._sum)
