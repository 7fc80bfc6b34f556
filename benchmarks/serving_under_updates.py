"""What updates do to those who ask meanwhile, with us and with a server that reloads its SavedModel.

`python -m benchmarks.serving_under_updates [--seconds 10] [--rate 1000] [--rows 4000000]`: so many requests a second,
counted from the moment at which each should have been sent, while nothing changes; while a delta of 100,000 rows
appears each second; while a full has to be restored, because the deltas before it are gone; while another export
takes the place. All that appears was made before, by a trainer that is gone, and is linked into the directories that
are watched.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks._open_load import OpenLoad
from benchmarks._server_processes import ServerProcess, free_port
from benchmarks.report import Figure, print_report
from benchmarks.served_table import COLUMNS, IDS, Ranker, TableTrainer
from hotdelta.chain import Kind, Manifest, Scanner, directory_of
from hotdelta.chain.format import names

DELTA_ROWS = 100_000
CONNECTIONS = 32
RELOAD_EVERY_SECONDS = 5.0
_WITHHELD = 2
_LIMIT_SECONDS = 60.0
_ANY_ROW = json.dumps({"instances": [list(range(IDS))]}).encode()

Happen = Callable[[threading.Event], None]


@dataclass(frozen=True, slots=True)
class Made:
    """What a trainer left: an export, deltas, a full behind deltas that nobody sees, and an export of that."""

    run_dir: Path
    export_dir: Path
    first: tuple[Manifest, ...]
    deltas: tuple[Manifest, ...]
    full: Manifest


def make(directory: Path, rows: int, deltas: int) -> Made:
    trainer = TableTrainer(directory, rows, Ranker)
    trainer.export()
    first = _committed(trainer)
    for _ in range(deltas + _WITHHELD):
        trainer.commit_rows(DELTA_ROWS)
    made = _committed(trainer)[len(first) :]
    trainer.commit_full()
    trainer.export()
    full = next(each for each in reversed(_committed(trainer)) if each.kind is Kind.FULL)
    trainer.release()
    return Made(trainer.run_dir, trainer.export_dir, first, made[:deltas], full)


def _committed(trainer: TableTrainer) -> tuple[Manifest, ...]:
    return tuple(Scanner(trainer.run_dir).scan().manifests)


class Shown:
    """Directories that a server watches, where what was made appears when its time has come."""

    def __init__(self, directory: Path, made: Made) -> None:
        self._made = made
        self.run_dir, self.export_dir = directory / "run", directory / "export"
        self.export_dir.mkdir(parents=True)
        self.newest = made.first[-1]
        self._versions = 0
        self._begin_chain()
        self.show_export("1")

    def _begin_chain(self) -> None:
        """All that is no commit, and the first of those."""
        commits = [each for each in _all_of(self._made.run_dir) if each not in self._made.first]
        hidden = {path for each in commits for path in _files(self._made.run_dir, each)}

        def skipped(folder: str, found: list[str]) -> set[str]:
            return {name for name in found if Path(folder) / name in hidden}

        shutil.copytree(self._made.run_dir, self.run_dir, ignore=skipped, copy_function=os.link)

    def show(self, manifest: Manifest) -> None:
        """Its manifest last: with that it exists."""
        into = directory_of(self.run_dir, manifest.kind)
        for path in _files(self._made.run_dir, manifest):
            os.link(path, into / path.name)
        self.newest = manifest

    def show_export(self, version: str) -> None:
        """As the next version, complete at once."""
        self._versions += 1
        coming = self.export_dir.with_name("coming")
        shutil.copytree(self._made.export_dir / version, coming, copy_function=os.link)
        coming.rename(self.export_dir / str(self._versions))


def _all_of(run_dir: Path) -> Sequence[Manifest]:
    return Scanner(run_dir).scan().manifests


def _files(run_dir: Path, manifest: Manifest) -> list[Path]:
    directory, last = directory_of(run_dir, manifest.kind), names.manifest_name(manifest.prefix)
    return sorted(directory.glob(f"{manifest.prefix}.*"), key=lambda path: (path.name == last, path.name))


@dataclass(frozen=True, slots=True)
class Phase:
    load: OpenLoad
    peak_bytes: int


def measure_phase(server: ServerProcess, rate: int, seconds: int, rows: int, happen: Happen) -> Phase:
    """The load, while a thread lets something happen."""
    ended, peak = threading.Event(), [server.memory_bytes()]

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], server.memory_bytes())

    threads = [threading.Thread(target=watch), threading.Thread(target=happen, args=(ended,))]
    for thread in threads:
        thread.start()
    numbers = (server.port, CONNECTIONS, rate, seconds, rows, IDS)
    command = [sys.executable, "-m", "benchmarks._open_load", *map(str, numbers)]
    try:
        load = OpenLoad(**json.loads(subprocess.check_output(command)))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    return Phase(load, peak[0])


def nothing(_ended: threading.Event) -> None:
    return


@contextmanager
def following(directory: Path, shown: Shown) -> Iterator[ServerProcess]:
    port = free_port()
    directories = ("--export-dir", str(shown.export_dir), "--checkpoint-dir", str(shown.run_dir))
    with ServerProcess(
        "hotdelta", "server.cli", "--port", str(port), *directories, port=port, log=directory / "server.log"
    ) as server:
        server.ask("/predict", _ANY_ROW)
        yield server


@contextmanager
def reloading(directory: Path, shown: Shown) -> Iterator[ServerProcess]:
    port = free_port()
    arguments = (str(shown.export_dir), str(port))
    log = directory / "reloading.log"
    with ServerProcess(
        "the server that reloads", "benchmarks._reloading_server", *arguments, port=port, log=log
    ) as server:
        server.ask("/predict", _ANY_ROW, {"Content-Type": "application/json"})
        yield server


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} was never served")
        threading.Event().wait(0.05)


def told_by(server: ServerProcess, path: str) -> Any:
    return httpx.get(f"{server.url}{path}", trust_env=False, timeout=10).json()


def measure_ours(directory: Path, made: Made, rate: int, seconds: int, rows: int) -> dict[str, Phase]:
    shown = Shown(directory / "ours", made)

    def show_deltas(ended: threading.Event) -> None:
        for manifest in made.deltas:
            if ended.wait(1.0):
                return
            shown.show(manifest)

    def in_the_middle(show: Callable[[], None]) -> Happen:
        def happen(ended: threading.Event) -> None:
            ended.wait(seconds / 3)
            show()

        return happen

    def is_newest() -> bool:
        served: str = told_by(server, "/model/version")["position"]
        return served == str(shown.newest.position)

    phases = {}
    with following(directory, shown) as server:
        measure_phase(server, rate, 2, rows, nothing)
        for name, happen, what, is_served in (
            ("idle", nothing, "", lambda: True),
            ("deltas", show_deltas, "the newest delta", is_newest),
            ("full", in_the_middle(lambda: shown.show(made.full)), "the full", is_newest),
            (
                "swap",
                in_the_middle(lambda: shown.show_export("2")),
                "the export",
                lambda: told_by(server, "/model/version")["export_version"] == 2,
            ),
        ):
            print(f"  hotdelta: {name}", flush=True)
            phases[name] = measure_phase(server, rate, seconds, rows, happen)
            wait_for(what, is_served)
    return phases


def measure_reloading(directory: Path, made: Made, rate: int, seconds: int, rows: int) -> dict[str, Phase]:
    shown = Shown(directory / "theirs", made)

    def show_exports(ended: threading.Event) -> None:
        while not ended.wait(RELOAD_EVERY_SECONDS / 2):
            shown.show_export("1")
            if ended.wait(RELOAD_EVERY_SECONDS / 2):
                return

    phases = {}
    with reloading(directory, shown) as server:
        measure_phase(server, rate, 2, rows, nothing)
        for name, happen in (("idle", nothing), ("reloads", show_exports)):
            print(f"  the server that reloads: {name}", flush=True)
            phases[name] = measure_phase(server, rate, seconds, rows, happen)
        wait_for("a version", lambda: told_by(server, "/version") > 1)
    return phases


def figures_of(ours: dict[str, Phase], theirs: dict[str, Phase]) -> list[Figure]:
    idle, deltas = ours["idle"].load, ours["deltas"].load
    failures = sum(phase.load.failures for phase in ours.values())
    return [
        Figure("p50_idle_ms", idle.p50_ms),
        Figure("p99_idle_ms", idle.p99_ms),
        Figure("p999_idle_ms", idle.p999_ms),
        Figure("p99_updates_over_idle", deltas.p99_ms / idle.p99_ms, "at most 1.5"),
        Figure("p999_updates_over_idle", deltas.p999_ms / idle.p999_ms),
        Figure("worst_full_ms", ours["full"].load.worst_ms),
        Figure("worst_swap_ms", ours["swap"].load.worst_ms),
        Figure("errors", failures, "at most 0"),
        Figure("reload_p99_over_ours", theirs["reloads"].load.p99_ms / deltas.p99_ms),
        Figure("reload_memory_over_ours", theirs["reloads"].peak_bytes / ours["deltas"].peak_bytes),
    ]


def _told(who: str, name: str, phase: Phase) -> str:
    load = phase.load
    return (
        f"{who:<8} {name:<8} p50 {load.p50_ms:>7.2f}  p99 {load.p99_ms:>7.2f}  p99.9 {load.p999_ms:>8.2f}  worst "
        f"{load.worst_ms:>8.2f} ms  {load.failures} failed of {load.answers + load.failures}  "
        f"{phase.peak_bytes / 2**20:,.0f} MB at most  (99 of 100 were sent within {load.late_p99_ms:.2f} ms of their "
        f"time, with {load.client_core_share:.0%} of a core)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=10, help="of each phase (default 10)")
    parser.add_argument("--rate", type=int, default=1000, help="requests a second (default 1000)")
    parser.add_argument("--rows", type=int, default=4_000_000, help="of the table (default 4,000,000)")
    options = parser.parse_args()
    seconds, rate, rows = options.seconds, options.rate, options.rows
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        print("  training", flush=True)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as trainer:
            made = trainer.submit(make, directory / "made", rows, seconds).result()
        ours = measure_ours(directory, made, rate, seconds, rows)
        theirs = measure_reloading(directory, made, rate, seconds, rows)
    print_report(
        f"{rate:,} requests a second on {rows:,} x {COLUMNS}, {seconds} s each: idle, {DELTA_ROWS:,} rows a second, a "
        f"full, another export; a SavedModel reloaded every {RELOAD_EVERY_SECONDS:g} s",
        figures_of(ours, theirs),
        [
            *(_told("hotdelta", name, phase) for name, phase in ours.items()),
            *(_told("reloads", name, phase) for name, phase in theirs.items()),
        ],
    )


if __name__ == "__main__":
    main()
