"""What an export costs, in memory and time, against a server that loads what was exported.

`python -m benchmarks.export [--rows 16000000] [--deltas 20]`: the commands `exporter` and `server` as processes, on a
table of random floats whose chain is a full and some deltas; each once on a tiny table too, for what TensorFlow costs
by itself. Memory is the largest resident set of the process (wait4), so pages of mapped files count while they are
mapped in; pages that the system keeps of files that are only read do not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.report import Figure, print_report

# This process never imports TensorFlow: a process that it starts counts the memory of its parent as its own until exec.
COLUMNS = 16
ROWS, TINY_ROWS = 16_000_000, 1_000
DELTAS = 20
START_SECONDS = 300.0
MEGABYTE = 1e6


@dataclass(frozen=True)
class Cost:
    """Of one process; the time of its processors says more where others use them too."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def write_chain(directory: Path, rows: int, deltas: int) -> None:
    """Random values, not zeros: nobody may be served by pages that were never written."""
    import tensorflow as tf

    from benchmarks.served_table import OneTable, TableTrainer

    class RandomTable(OneTable):
        def __init__(self, rows: int) -> None:
            super().__init__(rows)
            self.table.assign(tf.random.Generator.from_seed(5).normal(self.table.shape))

    trainer = TableTrainer(directory, rows, RandomTable)
    for _ in range(deltas):
        trainer.commit_rows(rows // 100)
    trainer.release()


def make_chain(directory: Path, rows: int, deltas: int) -> Path:
    process = multiprocessing.get_context("spawn").Process(
        target=write_chain, args=(directory, rows, deltas), name="trainer"
    )
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("the chain was not written")
    return directory


def export(directory: Path) -> Cost:
    start = time.perf_counter()
    command = [sys.executable, "-m", "exporter.cli", "--save-incr-model", *_directories(directory)]
    with (directory / "exporter.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    cost, code = _wait(process, start)
    if code:
        raise SystemExit(f"the exporter failed:\n{(directory / 'exporter.log').read_text()}")
    return cost


def serve(directory: Path) -> Cost:
    """Until the first answer."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "server.cli", "--port", "0", *_directories(directory)]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit(f"the server did not start:\n{(directory / 'server.log').read_text()}")
    _ask(line.split()[-1])
    seconds = time.perf_counter() - start
    process.send_signal(signal.SIGTERM)
    return replace(_wait(process, start)[0], seconds=seconds)


def _directories(directory: Path) -> list[str]:
    return ["--checkpoint-dir", str(directory / "run"), "--export-dir", str(directory / "export")]


def _ask(url: str) -> None:
    question = urllib.request.Request(f"{url}/predict", json.dumps({"instances": [1, 2]}).encode())  # noqa: S310
    question.add_header("Content-Type", "application/json")
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(question) as answer:  # noqa: S310 - our own server on loopback
                answer.read()
                return
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
        threading.Event().wait(0.05)


def _wait(process: subprocess.Popen[str] | subprocess.Popen[bytes], start: float) -> tuple[Cost, int]:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Cost(time.perf_counter() - start, cpu_seconds, usage.ru_maxrss * 1024), process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--deltas", type=int, default=DELTAS)
    arguments = parser.parse_args()
    table_bytes = arguments.rows * COLUMNS * 4
    with tempfile.TemporaryDirectory() as scratch:
        tiny = make_chain(Path(scratch, "tiny"), TINY_ROWS, arguments.deltas)
        tiny_export, tiny_server = export(tiny), serve(tiny)
        large = make_chain(Path(scratch, "large"), arguments.rows, arguments.deltas)
        exported, served = export(large), serve(large)
    extra = exported.peak_bytes - tiny_export.peak_bytes
    print_report(
        f"Exporting {arguments.rows:,} rows of {COLUMNS} floats ({table_bytes / MEGABYTE:,.0f} MB) with "
        f"{arguments.deltas} deltas of {arguments.rows // 100:,} rows",
        [
            Figure("export_memory_over_tables", extra / table_bytes, "at most 1.3"),
            Figure("export_seconds", exported.seconds),
            Figure("server_seconds", served.seconds),
            Figure("export_over_server_seconds", exported.seconds / served.seconds),
            Figure("export_over_server_cpu_seconds", exported.cpu_seconds / served.cpu_seconds),
            Figure("server_memory_over_tables", (served.peak_bytes - tiny_server.peak_bytes) / table_bytes),
        ],
        [
            f"exporter: {_told(exported)}; of a tiny table {_told(tiny_export)}",
            f"server, until its first answer: {_told(served)}; of a tiny table {_told(tiny_server)}",
        ],
    )


def _told(cost: Cost) -> str:
    megabytes = cost.peak_bytes / MEGABYTE
    return f"{megabytes:,.0f} MB at most, {cost.seconds:.1f} s ({cost.cpu_seconds:.1f} s of processors)"


if __name__ == "__main__":
    main()
