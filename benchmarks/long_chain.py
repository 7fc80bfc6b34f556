"""What a long chain costs: listing it, exporting from it, resuming it and starting a server on it.

`python -m benchmarks.long_chain [--deltas 20000] [--rows 100000] [--delta-rows 100]` (processor seconds are told beside
those of the clock: on a busy machine only they can be compared)
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lengthened_chain import lengthen
from benchmarks.report import Figure, print_report
from benchmarks.served_table import TableTrainer
from exporter import export_saved_model
from hotdelta.chain import Position
from hotdelta.cli import main as run_hotdelta
from loader import Loader, LoaderSettings

OPEN_FILES = 256
START_SECONDS = 600.0


@dataclass(frozen=True)
class Cost:
    name: str
    seconds: float
    processor_seconds: float


def measure(name: str, run: Callable[[], object]) -> Cost:
    start, start_of_processor = time.perf_counter(), time.process_time()
    run()
    cost = Cost(name, time.perf_counter() - start, time.process_time() - start_of_processor)
    print(f"  {name}: {cost.seconds:.1f} s", flush=True)
    return cost


def list_chain(run_dir: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        if run_hotdelta(["chain", str(run_dir)]) != 0:
            raise RuntimeError("the chain is not in order")


def start_server(directory: Path, newest: Position) -> None:
    loader = Loader(LoaderSettings(export_dir=directory / "export", checkpoint_dir=directory / "run"))
    loader.start()
    try:
        if not loader.wait_for(newest, START_SECONDS):
            raise RuntimeError(f"{newest} is not served: {loader.status()}")
    finally:
        loader.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deltas", type=int, default=20_000, help="deltas after the full (default 20000)")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the table")
    parser.add_argument("--delta-rows", type=int, default=100, help="rows in a delta")
    arguments = parser.parse_args()
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard_limit))
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        trainer = TableTrainer(directory, arguments.rows)
        trainer.commit_rows(arguments.delta_rows)
        trainer.export()
        trainer.release()
        newest = lengthen(trainer.run_dir, arguments.deltas - 1)
        print(f"{arguments.deltas:,} deltas are written")
        costs = [
            measure("chain", lambda: list_chain(trainer.run_dir)),
            measure(
                "export",
                lambda: export_saved_model(trainer.run_dir, directory / "second", save_incr_model=True),
            ),
            measure("server", lambda: start_server(directory, newest.position)),
            measure("resume", lambda: TableTrainer(directory, arguments.rows).release()),
        ]
    print_report(
        f"A full of {arguments.rows:,} rows and {arguments.deltas:,} deltas of {arguments.delta_rows:,} rows",
        [
            figure
            for cost in costs
            for figure in (
                Figure(f"{cost.name}_seconds", cost.seconds),
                Figure(
                    f"{cost.name}_processor_ms_per_delta", 1000 * cost.processor_seconds / arguments.deltas
                ),
            )
        ],
        [
            f"with {OPEN_FILES} files that may be open",
            "export: what the exporter reads, without what it writes",
        ],
    )


if __name__ == "__main__":
    main()
