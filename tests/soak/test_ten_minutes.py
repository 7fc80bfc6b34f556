"""Ten minutes of a delta every 100 ms under full predict load: nothing grows, nothing slows down, nothing is wrong.

A trainer process, the server process, and clients that ask over HTTP as fast as they are answered.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from tests.chaos.programs import Writer
from tests.chaos.truth import QUESTION
from tests.end_to_end.processes import Program, Server
from tests.waiting import wait_until

AnyProgram = TypeVar("AnyProgram", bound=Program)

MINUTES = float(os.environ.get("HOTDELTA_SOAK_MINUTES", "10"))
CLIENTS = 2
DELTA_SECONDS = 0.1
FULL_EVERY = 100
"""With five fulls kept, the directory has its full size before the first minute is over."""


@dataclass(frozen=True)
class Sample:
    """A process at one moment."""

    rss: int
    descriptors: int
    threads: int


def sample(process: psutil.Process) -> Sample:
    return Sample(process.memory_info().rss, process.num_fds(), process.num_threads())


class Client:
    """Asks until it is told to stop. Every row carries the step that trained it, so that no answer may mix two."""

    def __init__(self, url: str) -> None:
        self.answers = 0
        self.wrong: list[Any] = []
        self._url = url
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="client")
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as http:
            while not self._is_stopping.is_set():
                answer = http.post("/predict", json=QUESTION).raise_for_status().json()
                self.answers += 1
                step, outputs = answer["version"]["step"], answer["outputs"]
                if set(outputs["bias"]) != {step} or max(map(max, outputs["users"])) > step:
                    self.wrong.append(answer)


@contextmanager
def asked(url: str) -> Iterator[list[Client]]:
    clients = [Client(url) for _ in range(CLIENTS)]
    try:
        yield clients
    finally:
        for client in clients:
            client.stop()


@contextmanager
def ended(program: AnyProgram) -> Iterator[AnyProgram]:
    try:
        yield program
    finally:
        program.kill()


def train(writer: Writer, seconds: float, first_delta: int) -> int:
    """Deltas at their times, for so long; how many there were, all in all."""
    start, delta, pause = time.monotonic(), first_delta, threading.Event()
    while time.monotonic() - start < seconds:
        delta += 1
        writer.train([delta % 64, delta * 7 % 64], is_full=delta % FULL_EVERY == 0)
        pause.wait(max(0.0, start + (delta - first_delta) * DELTA_SECONDS - time.monotonic()))
    return delta


def lags(server: Server) -> list[float]:
    """Milliseconds from commit to first answer of every update that the log tells of."""
    lines = [json.loads(line) for line in server.said.splitlines() if '"update served"' in line]
    return [line["total_ms"] for line in lines]


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[-1]


@pytest.mark.soak
def test_memory_descriptors_threads_and_lag_stay_where_they_were(tmp_path: Path) -> None:
    with (
        ended(Writer(tmp_path)) as writer,
        ended(Server(tmp_path / "export", tmp_path / "source", tmp_path / "server.log")) as server,
    ):
        server.wait_until_ready()
        process = psutil.Process(server.process.pid)
        with asked(server.url) as clients:
            deltas = train(writer, 60, 0)
            first, early = sample(process), lags(server)
            deltas = train(writer, (MINUTES - 2) * 60, deltas)
            before_last = len(lags(server))
            deltas = train(writer, 60, deltas)
            last, late = sample(process), lags(server)[before_last:]
        newest = writer.train([1])["position"]
        wait_until(lambda: server.version()["position"] == newest, "the newest position is served")
        assert server.version()["update_state"] == "following"
    answers = sum(client.answers for client in clients)
    print(f"{deltas} deltas, {answers} answers; minute 1: {first}, end: {last}")
    print(f"lag: {len(early)} updates, p99 {p99(early):.1f} ms; then {len(late)}, p99 {p99(late):.1f} ms")
    assert [client.wrong for client in clients] == [[]] * CLIENTS
    assert last.rss <= first.rss * 1.05
    assert last.descriptors <= first.descriptors * 1.05
    assert last.threads <= first.threads * 1.05
    assert p99(late) <= 1.5 * p99(early)
