"""How old an answer is: from the manifest on disk to the first prediction served at its position.

`python -m benchmarks.lag [--seconds 60]`: one delta of 20,000 rows a second, predictions running all the time.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.report import Figure, print_report
from benchmarks.served_table import COLUMNS, TrainerProcess, following, random_ids, read_and_assign
from hotdelta.chain import Kind, Position, Scanner
from loader import Loader

ROWS, DELTA_ROWS = 1_000_000, 20_000
PAUSE_SECONDS = 0.001


class Clients:
    """Threads that predict every millisecond, and note when each position was answered for the first time.

    They leave a part of the two cores free: a machine without any has no lag that says something about the software.
    """

    def __init__(self, loader: Loader, threads: int = 2) -> None:
        self._loader = loader
        self._stop = threading.Event()
        self.first_answer: dict[Position, float] = {}
        self.answers = [0] * threads
        self._threads = [
            threading.Thread(target=self._ask, args=(number,), name=f"client-{number}")
            for number in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        feeds = random_ids(ROWS)
        while not self._stop.wait(PAUSE_SECONDS):
            _, version = self._loader.predict("serving_default", feeds)
            self.answers[number] += 1
            if version.position not in self.first_answer:
                self.first_answer.setdefault(version.position, time.time())


def measure(directory: Path, seconds: int) -> tuple[list[float], float, int]:
    """Lags in seconds, the bare read and scatter in seconds, and the number of answers."""
    trainer = TrainerProcess(directory, ROWS)
    trainer.export()
    committed: dict[Position, float] = {}
    with following(trainer) as loader, Clients(loader) as clients:
        start = time.monotonic()
        for second in range(seconds):
            trainer.write_rows(DELTA_ROWS)
            commit = trainer.commit()
            committed[commit.position] = commit.at
            print(f"\r  delta {second + 1} of {seconds}", end="", flush=True)
            threading.Event().wait(max(0.0, start + second + 1 - time.monotonic()))
        loader.wait_for(max(committed), 30)
        threading.Event().wait(0.2)
    trainer.stop()
    print()
    lags = [
        clients.first_answer[position] - at
        for position, at in committed.items()
        if position in clients.first_answer
    ]
    if len(lags) != seconds:
        raise SystemExit(f"{seconds - len(lags)} of {seconds} updates were never served by themselves")
    return lags, _bare_seconds(trainer.run_dir), sum(clients.answers)


def _bare_seconds(run_dir: Path) -> float:
    table = np.zeros((ROWS, COLUMNS), np.float32)
    seconds = []
    for manifest in Scanner(run_dir).scan().manifests:
        if manifest.kind is Kind.DELTA:
            run = read_and_assign(run_dir, manifest, table)
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long, one delta a second (default 60)")
    seconds = parser.parse_args().seconds
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        lags, bare, answers = measure(Path(scratch), seconds)
    p50, p99 = (float(np.percentile(lags, percent)) for percent in (50, 99))
    print_report(
        f"Lag, {DELTA_ROWS:,} rows a second into {ROWS:,} x {COLUMNS}, {len(lags)} deltas",
        [
            Figure("lag_p50_ms", p50 * 1e3),
            Figure("lag_p99_ms", p99 * 1e3),
            Figure("p99_over_limit", p99 / bare, "at most 10"),
        ],
        [f"bare read and assign {bare * 1e3:.2f} ms; {answers:,} predictions meanwhile"],
    )


if __name__ == "__main__":
    main()
