"""Ten minutes of a delta every 100 ms under full predict load: nothing grows, nothing slows down, nothing is wrong."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from loader import Loader
from tests.loader.step_model import Trainer, answer, assert_serves, export, serving, wait_for_position

MINUTES = float(os.environ.get("HOTDELTA_SOAK_MINUTES", "10"))
DELTA_SECONDS = 0.1
FULL_EVERY = 100
"""With five fulls kept, the directory has its full size before the first minute is over."""


@dataclass(frozen=True)
class Sample:
    """The process at one moment."""

    rss: int
    descriptors: int
    threads: int


def sample() -> Sample:
    process = psutil.Process()
    return Sample(process.memory_info().rss, process.num_fds(), process.num_threads())


def ask_until(loader: Loader, stop: threading.Event, wrong: list[str]) -> None:
    """Every row that was trained at a step carries it, so that no answer may mix two of them."""
    while not stop.is_set():
        outputs, version = answer(loader)
        if not (outputs["bias"] == version.step).all() or outputs["users"].max() > version.step:
            wrong.append(str(version))


def quantile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000)[int(share * 1000) - 1]


@pytest.mark.soak
def test_memory_descriptors_threads_and_lag_stay_where_they_were(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "run")
    newest = trainer.train()
    export(tmp_path / "run", tmp_path / "export")
    stop, wrong = threading.Event(), list[str]()
    lags: list[tuple[float, float]] = []
    with serving(tmp_path, undo_bytes=2**20) as loader:
        wait_for_position(loader, newest)
        asking = threading.Thread(target=ask_until, args=(loader, stop, wrong), name="asking")
        asking.start()
        start = time.monotonic()
        first: Sample | None = None
        deltas = 0
        while (passed := time.monotonic() - start) < MINUTES * 60:
            deltas += 1
            ids = [deltas % 64, deltas * 7 % 64]
            position = trainer.train_full(ids) if deltas % FULL_EVERY == 0 else trainer.train(ids)
            committed = time.monotonic()
            wait_for_position(loader, position)
            lags.append((passed, time.monotonic() - committed))
            if first is None and passed >= 60:
                first = sample()
            stop.wait(max(0.0, start + deltas * DELTA_SECONDS - time.monotonic()))
        last = sample()
        stop.set()
        asking.join()
        assert_serves(loader, trainer.model)
    trainer.close()
    assert wrong == []
    assert first is not None
    early = [lag for passed, lag in lags if passed < 60]
    late = [lag for passed, lag in lags if passed >= MINUTES * 60 - 60]
    print(f"{deltas} deltas, minute 1 {first}, end {last}")
    print(f"lag p99: {quantile(early, 0.99) * 1e3:.1f} ms, then {quantile(late, 0.99) * 1e3:.1f} ms")
    assert last.rss <= first.rss * 1.05
    assert last.descriptors <= first.descriptors * 1.05 + 1
    assert last.threads <= first.threads * 1.05
    assert quantile(late, 0.99) <= 1.5 * quantile(early, 0.99)
