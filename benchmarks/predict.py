"""What answering over HTTP costs: requests per second, latency, and what updates add to it.

`python -m benchmarks.predict [--rounds 5] [--seconds 3]`: the command `server` and a plain FastAPI application around
the same export, each a process on loopback, asked in turn. One row a request; each connection asks again when answered.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks._http_load import Load
from benchmarks.report import Figure, print_report
from benchmarks.served_table import COLUMNS, IDS, Ranker, TrainerProcess
from hotdelta.chain import Position
from server.figures import BatchFigures, PredictFigures, RequestFigures

ROWS, DELTA_ROWS = 100_000, 20_000
FEW, MANY = 1, 32
ANY_IDS = list(range(IDS))
START_SECONDS = 120.0

Loads = dict[str, list[Load]]


class Server:
    """A program that prints where it listens, and answers POST /predict there."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self._log = log
        command = [sys.executable, "-m", module, *arguments]
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self._url.rsplit(":", 1)[1])

    def __enter__(self) -> Self:
        try:
            line = self._process.stdout.readline() if self._process.stdout else ""
        except BaseException:
            self.__exit__()
            raise
        if not line:
            raise SystemExit(f"a server did not start:\n{self._log.read_text()}")
        self._url = line.split()[-1]
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def predict(self, ids: list[int], **more: str | int) -> Any:
        """The prediction for one row; waits for a model that is still being loaded."""
        body = json.dumps({"instances": [ids], **more}).encode()
        question = urllib.request.Request(f"{self._url}/predict", body)  # noqa: S310
        question.add_header("Content-Type", "application/json")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(question) as answer:  # noqa: S310 - our own server on loopback
                    return json.load(answer)["predictions"]
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise
            threading.Event().wait(0.1)

    def load(self, connections: int, seconds: int) -> Load:
        numbers = (self.port, self.pid, connections, seconds, ROWS, IDS)
        command = [sys.executable, "-m", "benchmarks._http_load", *map(str, numbers)]
        return Load(**json.loads(subprocess.check_output(command)))


@contextmanager
def updates(trainer: TrainerProcess, server: Server) -> Iterator[None]:
    """A delta every second from a process of its own. In the end the server must have taken all of them."""
    stop = threading.Event()
    committed: list[Position] = []

    def commit() -> None:
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            trainer.write_rows(DELTA_ROWS)
            committed.append(trainer.commit().position)
            due += 1.0

    thread = threading.Thread(target=commit, name="updates")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    server.predict(ANY_IDS, min_position=str(committed[-1]), wait_ms=10_000)


def measure(directory: Path, rounds: int, seconds: int) -> Loads:
    loads: Loads = defaultdict(list)
    with ExitStack() as running:
        trainer = TrainerProcess(directory, ROWS, Ranker)
        running.callback(trainer.stop)
        export = trainer.export()
        directories = ("--export-dir", str(trainer.export_dir), "--checkpoint-dir", str(trainer.run_dir))
        ours = Server(directory / "server.log", "server.cli", "--port", "0", *directories)
        running.enter_context(ours)
        plain = Server(directory / "plain.log", "benchmarks._plain_server", str(export))
        running.enter_context(plain)
        require_equal_answers(ours, plain)
        for number in range(rounds):
            print(f"\r  round {number + 1} of {rounds}", end="", flush=True)
            for connections in (FEW, MANY):
                loads[f"plain_{connections}"].append(plain.load(connections, seconds))
                loads[f"server_{connections}"].append(ours.load(connections, seconds))
            with updates(trainer, ours):
                loads["updated"].append(ours.load(MANY, seconds))
    print()
    return loads


def require_equal_answers(one: Server, other: Server) -> None:
    answers = [one.predict(ANY_IDS), other.predict(ANY_IDS)]
    # One writes a float32 with the digits that it has, the other with those of a float64.
    if not np.array_equal(*np.array(answers, np.float32)):
        raise SystemExit(f"two servers, two answers: {answers}")


def median_load(loads: list[Load]) -> Load:
    return Load(*(statistics.median(getattr(load, name) for load in loads) for name in Load.__slots__))


def counting_us(rounds: int = 20, requests: int = 50_000) -> float:
    """What all that is counted of one request for /metrics takes, the clock read included; the least of some rounds.

    As if each had a call of its own: requests that share one count their batch once.
    """
    answered, predicted, batches = RequestFigures(), PredictFigures(), BatchFigures()

    def count() -> None:
        started = time.perf_counter()
        predicting = time.perf_counter()
        batches.requests.observe(1)
        batches.rows.observe(1)
        predicted.observe("hotdelta", time.perf_counter() - predicting)
        answered.observe(200, time.perf_counter() - started)

    return min(timeit.repeat(count, repeat=rounds, number=requests)) / requests * 1e6


def _figures(medians: dict[str, Load]) -> list[Figure]:
    figures = []
    for connections in (FEW, MANY):
        ours, plain = medians[f"server_{connections}"], medians[f"plain_{connections}"]
        figures += [
            Figure(f"throughput_over_plain_{connections}", ours.per_second / plain.per_second),
            Figure(f"requests_per_second_{connections}", ours.per_second),
            Figure(f"p50_ms_{connections}", ours.p50_ms),
            Figure(f"p99_ms_{connections}", ours.p99_ms),
        ]
    disturbed, quiet = medians["updated"], medians[f"server_{MANY}"]
    return [
        *figures,
        Figure("p99_under_updates", disturbed.p99_ms / quiet.p99_ms),
        Figure("counting_us", counting_us(), "at most 2"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement in a round (default 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        loads = measure(Path(scratch), arguments.rounds, arguments.seconds)
    medians = {name: median_load(of_rounds) for name, of_rounds in loads.items()}
    print_report(
        f"Predicting over HTTP, {IDS} ids of {ROWS:,} x {COLUMNS}, dense {IDS * COLUMNS}-64-1, "
        f"medians of {arguments.rounds}; updates: {DELTA_ROWS:,} rows a second at {MANY} connections",
        _figures(medians),
        [told(name, load) for name, load in medians.items()],
    )


def told(name: str, load: Load) -> str:
    return (
        f"{name:<9}  {load.per_second:>6,.0f} requests/s  p50 {load.p50_ms:>6.2f} ms  p99 {load.p99_ms:>6.2f} ms  "
        f"{load.server_cpu_us:>4.0f} us of processor each; asking took {load.client_core_share:.0%} of a core"
    )


if __name__ == "__main__":
    main()
