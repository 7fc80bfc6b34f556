"""How fresh answers can be, and what that costs: from an event to the first answer that has learnt from it.

`python -m benchmarks.freshness [--intervals 0.05 0.2 1 5] [--seconds 15] [--rounds 3]`: a stream of events, a Keras
trainer that learns from it and saves a delta at each interval, the command `server` that follows it, and a client that
asks all the time, each a process on loopback. First without a break, then in bursts: the last events of a burst are
saved while training waits for more. What saving costs the trainer is measured before, alone and without waiting for
events.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import psutil

from benchmarks._stream_trainer import (
    BATCH,
    BATCH_SECONDS,
    COLUMNS,
    HIDDEN,
    IDS,
    ROWS,
    Batch,
    Burst,
    StreamTrainer,
)
from benchmarks.predict import Server
from benchmarks.report import Figure, print_report
from hotdelta.chain import BundleReader, Kind, Manifest, Position, Scanner, directory_of
from hotdelta.chain.format import names

ASK_SECONDS = 0.005
BURST_SECONDS = 0.3
SILENCE_SECONDS = (0.5, 3.0)
# Of the beginning of a stream, nothing is counted.
SETTLE_SECONDS = 1.0
TURN_SECONDS = 2.2
EVENTS_OF_BATCH = 4
TRIES = 3


class Client:
    """The process that asks, and what it has noted."""

    def __init__(self, port: int, notes: Path) -> None:
        self._notes = notes
        body = json.dumps({"instances": [list(range(IDS))]})
        command = [sys.executable, "-m", "benchmarks._asking", str(port), str(ASK_SECONDS), body]
        with notes.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def first_answers(self) -> list[tuple[Position, float]]:
        """When each position was answered from first, in order."""
        if self._process.poll() is not None:
            raise SystemExit("the client ended; its error is above")
        lines = self._notes.read_text().rpartition("\n")[0].splitlines()
        return [(Position.parse(position), float(at)) for position, at in map(str.split, lines)]


@dataclass(frozen=True, slots=True)
class Delay:
    """Of one event: when it happened, and when it was trained, committed and answered from."""

    event: float
    trained: float
    committed: float
    served: float

    @property
    def seconds(self) -> float:
        return self.served - self.event


@dataclass(frozen=True, slots=True)
class Freshness:
    """What was measured at one interval."""

    steady: list[Delay]
    after_bursts: list[Delay]
    deltas_per_second: float
    bytes_per_second: float
    delta_bytes: float
    dense_bytes: float
    cores: dict[str, float]


class Chain:
    """What was committed until now, and what the client was answered from."""

    def __init__(self, run_dir: Path, client: Client) -> None:
        self._run_dir = run_dir
        self.deltas = [item for item in Scanner(run_dir).scan().manifests if item.kind is Kind.DELTA]
        known = {item.position: item.watermark for item in self.deltas if item.watermark}
        answers = [(known[position], at) for position, at in client.first_answers() if position in known]
        self._served_watermarks, self._served_at = map(list, zip(*answers, strict=True))
        self._watermarked = [item for item in self.deltas if item.watermark]
        self._watermarks = [item.watermark or 0.0 for item in self._watermarked]

    def delays(self, batch: Batch, end: float) -> list[Delay]:
        """Of some events of a batch; none when only the end of training saved it, or nobody answered from it."""
        commit = bisect.bisect_left(self._watermarks, batch.last)
        answer = bisect.bisect_left(self._served_watermarks, batch.last)
        if commit == len(self._watermarks) or answer == len(self._served_at):
            return []
        committed = self._committed_at(self._watermarked[commit])
        if committed > end:
            return []
        events = np.linspace(batch.first, batch.last, EVENTS_OF_BATCH, endpoint=False)
        return [Delay(event, batch.trained, committed, self._served_at[answer]) for event in events]

    def _committed_at(self, manifest: Manifest) -> float:
        return (self._directory / names.manifest_name(manifest.prefix)).stat().st_ctime

    def dense_bytes(self, manifest: Manifest) -> int:
        """Of the values that are no rows of tables."""
        with BundleReader(self._directory, manifest.prefix) as reader:
            return sum(
                entry.size for name, entry in reader.entries.items() if name.endswith(names.VALUE_SUFFIX)
            )

    @property
    def _directory(self) -> Path:
        return directory_of(self._run_dir, Kind.DELTA)


class CoreShares:
    """How many cores each process used, from now on."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self._before = self._seconds()

    def per(self, seconds: float) -> dict[str, float]:
        now = self._seconds()
        return {name: (now[name] - before) / seconds for name, before in self._before.items()}

    def _seconds(self) -> dict[str, float]:
        times = {name: psutil.Process(pid).cpu_times() for name, pid in self._pids.items()}
        return {name: time.user + time.system for name, time in times.items()}


def bursts_of(seconds: float) -> list[Burst]:
    """Silences of all lengths, the same in each run, in no order."""
    least, most = SILENCE_SECONDS
    count = max(TRIES, round(seconds / (BURST_SECONDS + (least + most) / 2)))
    silences = np.random.default_rng(5).permutation(np.linspace(least, most, count))
    return [Burst(BURST_SECONDS, float(silence)) for silence in silences]


def measure_freshness(
    trainer: StreamTrainer, server: Server, client: Client, run_dir: Path, interval: float, seconds: float
) -> Freshness:
    steady, bursts = Burst(max(seconds, TRIES * interval)), bursts_of(seconds)
    begin = trainer.begin_stream(interval, [steady, *bursts]).at
    cores = CoreShares(trainer=trainer.pid, server=server.pid, client=client.pid)
    threading.Event().wait(steady.seconds)
    shares = cores.per(steady.seconds)
    batches = trainer.end_stream()
    end = begin + sum(burst.seconds + burst.silence for burst in (steady, *bursts))
    threading.Event().wait(1.0)
    chain = Chain(run_dir, client)
    counted = (begin + SETTLE_SECONDS, begin + steady.seconds)
    deltas = [delta for delta in chain.deltas if counted[0] < delta.created_at <= counted[1]]
    ends_of_bursts = [batch for batch in batches if batch.burst and batch.is_end_of_burst]
    return Freshness(
        steady=[
            delay
            for batch in batches
            if not batch.burst and batch.first >= counted[0]
            for delay in chain.delays(batch, end)
        ],
        after_bursts=[delay for batch in ends_of_bursts for delay in chain.delays(batch, end)],
        deltas_per_second=len(deltas) / (counted[1] - counted[0]),
        bytes_per_second=sum(delta.total_bytes for delta in deltas) / (counted[1] - counted[0]),
        delta_bytes=_median([delta.total_bytes for delta in deltas]),
        dense_bytes=_median([chain.dense_bytes(delta) for delta in deltas]),
        cores=shares,
    )


def measure_throughput(
    directory: Path, intervals: Sequence[float], rounds: int
) -> tuple[dict[float, float], float]:
    """Steps a second at each interval over those without saving, and by what two turns without it differ."""
    ratios: dict[float, list[float]] = {interval: [] for interval in intervals}
    same = []
    with StreamTrainer(directory) as trainer:
        for number in range(rounds):
            print(f"\r  throughput: round {number + 1} of {rounds}", end="", flush=True)
            before = trainer.steps_per_second(None, TURN_SECONDS)
            order = intervals if number % 2 == 0 else intervals[::-1]
            # A little over a whole number of intervals: as many deltas as in the long run.
            turns = {
                interval: trainer.steps_per_second(interval, max(TURN_SECONDS, 1.1 * interval))
                for interval in order
            }
            after = trainer.steps_per_second(None, TURN_SECONDS)
            same.append(after / before)
            for interval, rate in turns.items():
                ratios[interval].append(rate / ((before + after) / 2))
    print()
    return {interval: statistics.median(found) for interval, found in ratios.items()}, statistics.median(same)


def measure(directory: Path, intervals: Sequence[float], seconds: float) -> dict[float, Freshness]:
    run_dir, export_dir = directory / "run", directory / "export"
    directories = ("--export-dir", str(export_dir), "--checkpoint-dir", str(run_dir))
    found = {}
    with ExitStack() as running:
        trainer = running.enter_context(StreamTrainer(directory))
        trainer.begin_chain()
        export = [sys.executable, "-m", "exporter.cli", "--save-incr-model", *directories]
        exported = subprocess.run(export, check=False, capture_output=True, text=True)
        if exported.returncode:
            raise SystemExit(exported.stderr)
        server = Server(directory / "server.log", "server.cli", "--port", "0", *directories)
        running.enter_context(server)
        server.predict(list(range(IDS)))
        client = running.enter_context(Client(server.port, directory / "answers"))
        for interval in intervals:
            print(f"\r  a delta every {interval:g} s ", end="", flush=True)
            found[interval] = measure_freshness(trainer, server, client, run_dir, interval, seconds)
            if not found[interval].steady or not found[interval].after_bursts:
                log = (directory / "server.log").read_text().splitlines()[-3:]
                print("\n  not every figure could be measured; the server says:", *log, sep="\n    ")
    print()
    return found


def _median(sizes: Sequence[int]) -> float:
    return statistics.median(sizes) if sizes else math.nan


def _percentiles(delays: Sequence[Delay]) -> tuple[float, float]:
    """In milliseconds. Not a number when no event can be counted: a figure must not be made up, nor end the run."""
    if not delays:
        return math.nan, math.nan
    p50, p99 = np.percentile([delay.seconds for delay in delays], (50, 99)) * 1e3
    return float(p50), float(p99)


def _figures(interval: float, found: Freshness, ratio: float) -> list[Figure]:
    at = f"{interval:g}s"
    (p50, p99), (pause_p50, pause_p99) = map(_percentiles, (found.steady, found.after_bursts))
    figures = [
        Figure(f"event_to_served_p50_ms_{at}", p50),
        Figure(f"event_to_served_p99_ms_{at}", p99, "at most 250" if interval == 0.05 else ""),
        Figure(f"pause_event_to_served_p50_ms_{at}", pause_p50),
        Figure(f"pause_event_to_served_p99_ms_{at}", pause_p99),
        Figure(f"throughput_ratio_{at}", ratio, "at least 0.9" if interval == 1 else ""),
        Figure(f"written_mb_per_second_{at}", found.bytes_per_second / 1e6),
        Figure(f"delta_kb_{at}", found.delta_bytes / 1e3),
        Figure(f"delta_dense_kb_{at}", found.dense_bytes / 1e3),
    ]
    return [figure for figure in figures if not math.isnan(figure.value)]


_COLUMNS = (
    ("interval", 8),
    ("deltas/s", 8),
    ("event to served p50, p99", 25),
    ("of it trained + committed + answered", 37),
    ("after a burst p50, p99 (of)", 28),
    ("cores: trainer, server, client", 30),
)


def _table(found: dict[float, Freshness]) -> list[str]:
    """A line for each interval, in milliseconds; the three stages are means, which add up."""
    rows = [tuple(title for title, _ in _COLUMNS)]
    for interval, of_interval in found.items():
        p50, p99 = _percentiles(of_interval.steady)
        pause_p50, pause_p99 = _percentiles(of_interval.after_bursts)
        bursts = len(of_interval.after_bursts) // EVENTS_OF_BATCH
        rows.append(
            (
                f"{interval:g} s",
                f"{of_interval.deltas_per_second:.1f}",
                f"{p50:.0f}, {p99:.0f}",
                " + ".join(f"{stage * 1e3:.0f}" for stage in _mean_stages(of_interval.steady)),
                f"{pause_p50:.0f}, {pause_p99:.0f} ({bursts})",
                ", ".join(f"{share:.2f}" for share in of_interval.cores.values()),
            )
        )
    return [
        "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(row, _COLUMNS, strict=True)) for row in rows
    ]


def _mean_stages(delays: Sequence[Delay]) -> tuple[float, float, float]:
    """From the event to the end of its step, from there to its commit, and to the first answer."""
    if not delays:
        return math.nan, math.nan, math.nan
    event, trained, committed, served = np.mean(
        [(delay.event, delay.trained, delay.committed, delay.served) for delay in delays], axis=0
    )
    return trained - event, committed - trained, served - committed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--intervals",
        type=float,
        nargs="+",
        default=[0.05, 0.2, 1.0, 5.0],
        help="seconds between deltas (default 0.05 0.2 1 5)",
    )
    parser.add_argument(
        "--seconds", type=float, default=15, help="of each stream, and again of bursts (default 15)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds of throughput (default 3)")
    arguments = parser.parse_args()
    # Like Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        ratios, same = measure_throughput(directory, arguments.intervals, arguments.rounds)
        found = measure(directory, arguments.intervals, arguments.seconds)
    figures = [
        figure
        for interval in arguments.intervals
        for figure in _figures(interval, found[interval], ratios[interval])
    ]
    silences = [burst.silence for burst in bursts_of(arguments.seconds)]
    print_report(
        f"Freshness, {BATCH / BATCH_SECONDS:,.0f} events a second with {IDS} ids of {ROWS:,} x {COLUMNS} each, "
        f"dense {'-'.join(map(str, (IDS * COLUMNS, *HIDDEN, 1)))}, Adagrad",
        [*figures, Figure("throughput_a_a_ratio", same)],
        [
            *_table(found),
            f"without saves in pauses the end of a burst would wait for {statistics.median(silences):.1f} s (p50)",
        ],
    )


if __name__ == "__main__":
    main()
