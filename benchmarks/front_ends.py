"""What front-end processes save the process that has the model: its processor time for each request, with and without.

`python -m benchmarks.front_ends [--front-ends 2] [--rounds 5] [--seconds 3]`: two servers of one export on loopback,
asked in turn by wrk. On a machine with as many cores as processes requests per second say more than on two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks._server_processes import ServerProcess, free_port
from benchmarks._wire import ask_by_wrk, post, require_tools, write_requests
from benchmarks.report import Figure, print_report
from benchmarks.served_table import IDS, Ranker, TrainerProcess

ROWS = 100_000
_JSON = "Content-Type: application/json"


@dataclass(frozen=True, slots=True)
class Workload:
    key: str
    rows: int
    connections: int
    different: int


WORKLOADS = (
    Workload("rps32", 1, 32, 1000),
    Workload("rps128", 1, 128, 1000),
    Workload("rows256", 256, 8, 50),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Processor time for each answer: of the process that has the model, and of all of them."""

    per_second: float
    p99_ms: float
    model_us: float
    all_us: float


@dataclass(frozen=True, slots=True)
class Asked:
    server: ServerProcess
    requests: dict[str, Path]

    def measure(self, workload: Workload, seconds: int) -> Measured:
        before = self.server.own_cpu_seconds()
        load = ask_by_wrk(
            self.server, self.requests[workload.key], connections=workload.connections, seconds=seconds
        )
        own = self.server.own_cpu_seconds() - before
        answers = load.per_second * seconds
        return Measured(load.per_second, load.p99_ms, own / answers * 1e6, load.server_cpu_us)


def measure(directory: Path, front_ends: int, rounds: int, seconds: int) -> list[Figure]:
    trainer = TrainerProcess(directory, ROWS, Ranker)
    trainer.export()
    trainer.stop()
    random = np.random.default_rng(5)
    requests = {
        workload.key: write_requests(
            directory / f"{workload.key}.requests",
            [_request(random.integers(0, ROWS, (workload.rows, IDS))) for _ in range(workload.different)],
        )
        for workload in WORKLOADS
    }
    found: dict[tuple[str, int], list[Measured]] = defaultdict(list)
    with ExitStack() as running:
        asked = {
            count: Asked(running.enter_context(_start(trainer, directory, count)), requests)
            for count in (0, front_ends)
        }
        for each in asked.values():
            each.server.ask("/predict", _body(random.integers(0, ROWS, (1, IDS))))
            for workload in WORKLOADS:
                each.measure(workload, 1)
        for number in range(rounds):
            print(f"\r  round {number + 1} of {rounds}", end="", flush=True)
            for workload in WORKLOADS:
                for count, each in asked.items():
                    found[workload.key, count].append(each.measure(workload, seconds))
        print()
        front_end_bytes = _front_end_bytes(asked[front_ends].server)
    return [*_figures(found, front_ends), Figure("front_end_mb", front_end_bytes / 2**20)]


def _start(trainer: TrainerProcess, directory: Path, front_ends: int) -> ServerProcess:
    port = free_port()
    flags = ("--export-dir", str(trainer.export_dir), "--checkpoint-dir", str(trainer.run_dir))
    return ServerProcess(
        f"{front_ends} front-ends",
        "server.cli",
        *("--port", str(port), "--front-ends", str(front_ends), *flags),
        port=port,
        log=directory / f"{front_ends}.log",
    )


def _request(ids: np.ndarray) -> bytes:
    return post("/predict", _body(ids), _JSON)


def _body(ids: np.ndarray) -> bytes:
    return json.dumps({"instances": ids.tolist()}).encode()


def _front_end_bytes(server: ServerProcess) -> float:
    """Memory that one of them has to itself, in the median."""
    return statistics.median(
        psutil.Process(process.pid).memory_full_info().uss for process in server.children()
    )


def _figures(found: dict[tuple[str, int], list[Measured]], front_ends: int) -> list[Figure]:
    figures = []
    for workload in WORKLOADS:
        without = _median(found[workload.key, 0])
        several = _median(found[workload.key, front_ends])
        # What was measured one after the other is compared, so that what else the machine does matters less.
        pairs = zip(found[workload.key, 0], found[workload.key, front_ends], strict=True)
        ratio = statistics.median(before.model_us / after.model_us for before, after in pairs)
        for name, measured in (("without", without), ("with", several)):
            key = f"{workload.key}_{name}"
            figures += [
                Figure(f"model_cpu_us_{key}", measured.model_us),
                Figure(f"all_cpu_us_{key}", measured.all_us),
                Figure(f"requests_per_second_{key}", measured.per_second),
                Figure(f"p99_ms_{key}", measured.p99_ms),
            ]
        # Of 256 rows the call of the model is most.
        limit = "at least 2" if workload.rows == 1 else ""
        figures.append(Figure(f"model_cpu_without_over_with_{workload.key}", ratio, limit))
    return figures


def _median(measured: Sequence[Measured]) -> Measured:
    return Measured(
        *(statistics.median(getattr(each, name) for each in measured) for name in Measured.__slots__)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--front-ends", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    require_tools(("wrk",))
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), options.front_ends, options.rounds, options.seconds)
    print_report(
        f"Front-ends: {options.front_ends} of them, and none, in turn",
        figures,
        [
            "rps32: 1 row at 32 connections; rps128: at 128; rows256: 256 rows at 8",
            "model_cpu: processor time of the process that has the model; all_cpu: of all processes of the server",
        ],
    )


if __name__ == "__main__":
    main()
