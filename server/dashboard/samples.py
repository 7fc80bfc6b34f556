"""How fast answers were, every other second of the last quarter of an hour: one row of a few numbers for each model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hotdelta.figures import ANSWER_SECONDS
from server.models.models import Models

SAMPLE_SECONDS = 2.0
_KEPT = 450
_PERCENTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was answered between two moments; percentiles in milliseconds, None when nothing was."""

    at: float
    per_second: float
    percentiles: tuple[float | None, ...]
    waiting: int


class Samples:
    """The newest samples by model. Belongs to the event loop."""

    def __init__(self, models: Models, clock: Callable[[], float] = time.time) -> None:
        self._models = models
        self._clock = clock
        self._taken_at = clock()
        self._counts: dict[str, list[int]] = {}
        self._samples: dict[str, deque[Sample]] = {}

    def of(self, model: str) -> Sequence[Sample]:
        return self._samples.get(model, ())

    def take(self) -> None:
        now = self._clock()
        seconds, self._taken_at = now - self._taken_at, now
        entries = {entry.name or "": entry.plane for entry in self._models.entries()}
        for name in self._samples.keys() - entries.keys():
            del self._samples[name], self._counts[name]
        for name, plane in entries.items():
            counts = _sum([found.read().counts for found in plane.figures.seconds.values()])
            before = self._counts.get(name, [0] * len(counts))
            # Less than before: another model has this name now.
            new = [count - old for count, old in zip(counts, before, strict=True)]
            new = new if min(new) >= 0 else counts
            self._counts[name] = counts
            sample = Sample(
                at=now,
                per_second=sum(new) / seconds if seconds > 0 else 0.0,
                percentiles=tuple(percentile(new, share) for share in _PERCENTILES),
                waiting=plane.batcher.waiting,
            )
            self._samples.setdefault(name, deque(maxlen=_KEPT)).append(sample)


def _sum(histograms: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)] or [0] * (len(ANSWER_SECONDS) + 1)


def percentile(counts: Sequence[int], share: float) -> float | None:
    """In milliseconds, as Prometheus estimates it: evenly spread between the bounds of its bucket."""
    total = sum(counts)
    if total == 0:
        return None
    rank = share * total
    ends = list(accumulate(counts))
    bucket = next(number for number, end in enumerate(ends) if end >= rank)
    if bucket == len(ANSWER_SECONDS):
        return ANSWER_SECONDS[-1] * 1000
    low = ANSWER_SECONDS[bucket - 1] if bucket else 0.0
    before = ends[bucket] - counts[bucket]
    return (low + (ANSWER_SECONDS[bucket] - low) * (rank - before) / counts[bucket]) * 1000
