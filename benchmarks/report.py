"""What benchmarks share: a stopwatch, peak memory, and the report: a table, then a JSON object of named figures."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Figure:
    """One named figure; `limit` is how it should be, such as "at most 1.6", or empty when it is only reported."""

    name: str
    value: float
    limit: str = ""

    @property
    def is_met(self) -> bool | None:
        if not self.limit:
            return None
        bound = float(self.limit.rsplit(" ", 1)[1])
        return self.value <= bound if self.limit.startswith("at most") else self.value >= bound


def print_report(title: str, figures: Sequence[Figure], notes: Sequence[str] = ()) -> None:
    print(f"\n{title}")
    for note in notes:
        print(f"  {note}")
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        verdict = {True: "met", False: "MISSED", None: ""}[figure.is_met]
        print(f"  {figure.name:<{width}}  {figure.value:>12.4g}  {figure.limit:<14} {verdict}")
    print(json.dumps({figure.name: round(figure.value, 6) for figure in figures}), flush=True)


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """The largest resident memory of this process while the block runs."""
    process, stop, peak = psutil.Process(), threading.Event(), [0]

    def sample() -> None:
        while not stop.wait(0.01):
            peak[0] = max(peak[0], process.memory_info().rss)

    thread = threading.Thread(target=sample, name="memory-sampler")
    thread.start()
    try:
        yield lambda: peak[0]
    finally:
        stop.set()
        thread.join()


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
