"""What it costs to resume from a long chain, against TensorFlow restoring the full alone, interleaved.

`python -m benchmarks.resume [--scale 1.0] [--rounds 3]` (scale shrinks the table and the deltas, for a quick look)
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from benchmarks.report import Figure, peak_memory, print_report, seconds_of
from hotdelta.chain import Scanner, directory_of
from hotdelta.train import DeltaWriter

ROWS, COLUMNS = 10_000_000, 16
DELTAS, DELTA_ROWS = 50, 100_000
TABLE = "table"
BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None, "scrub_saves": 0}


class TrainedTable(tf.Module):
    """A table and the slot that Adagrad keeps of it."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = tf.Variable(tf.zeros([rows, COLUMNS]), name=TABLE)
        self.accumulator = tf.Variable(tf.zeros([rows, COLUMNS]), trainable=False, name="accumulator")

    @property
    def nbytes(self) -> int:
        return 2 * int(self.table.shape.num_elements()) * 4

    def writer(self, run_dir: Path) -> DeltaWriter:
        """Resumes."""
        return DeltaWriter(
            run_dir,
            {TABLE: self.table},
            tables=[TABLE],
            slots={TABLE: {"accumulator": self.accumulator}},
            tracking={TABLE: "touched"},
            **BY_HAND,
        )


def write_chain(directory: Path, rows: int, delta_rows: int) -> None:
    """A full and its deltas, and what tf.train.Checkpoint makes of the same full."""
    random = np.random.default_rng(7)
    trained = TrainedTable(rows)
    for variable in (trained.table, trained.accumulator):
        variable.assign(tf.random.uniform(variable.shape))
    tf.train.Checkpoint(trained).write(str(directory / "stock"))
    with trained.writer(directory / "run") as writer:
        for _ in range(DELTAS):
            ids = np.sort(random.choice(rows, delta_rows, replace=False))
            for variable in (trained.table, trained.accumulator):
                rows_of_ids = random.random((delta_rows, COLUMNS), np.float32)
                tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows_of_ids)
            writer.touch(TABLE, ids)
            writer.save()


class Resuming:
    """One model, put back to what is on disk in three ways."""

    def __init__(self, directory: Path, rows: int) -> None:
        self._directory = directory
        self._run_dir = directory / "run"
        self._files = [
            directory_of(self._run_dir, manifest.kind) / file.name
            for manifest in Scanner(self._run_dir).scan().manifests
            for file in manifest.files
        ]
        self.model = TrainedTable(rows)

    def resume(self) -> None:
        self.model.writer(self._run_dir).close()

    def restore_stock(self) -> None:
        tf.train.Checkpoint(self.model).read(str(self._directory / "stock")).assert_consumed()

    def read(self) -> None:
        for path in self._files:
            np.fromfile(path, np.uint8)

    def measure_memory(self) -> float:
        """The most memory that a resume needs, the model's own included, over what the model holds."""
        gc.collect()
        without = psutil.Process().memory_info().rss - self.model.nbytes
        with peak_memory() as peak:
            self.resume()
        return (peak() - without) / self.model.nbytes

    def measure(self) -> tuple[float, float, float]:
        return seconds_of(self.resume), seconds_of(self.restore_stock), seconds_of(self.read)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the table size (default 1.0)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows, delta_rows = int(ROWS * arguments.scale), int(DELTA_ROWS * arguments.scale)
    with tempfile.TemporaryDirectory() as scratch:
        # In a process of its own: what it leaves allocated would hide what a resume needs.
        spawn = multiprocessing.get_context("spawn")
        writing = spawn.Process(target=write_chain, args=(Path(scratch), rows, delta_rows))
        writing.start()
        writing.join()
        resuming = Resuming(Path(scratch), rows)
        memory = resuming.measure_memory()
        rounds = [resuming.measure() for _ in range(arguments.rounds)]
    resumed, stock, read = (statistics.median(times) for times in zip(*rounds, strict=True))
    print_report(
        f"Resuming {rows:,} rows of {COLUMNS} columns with a slot, and {DELTAS} deltas of {delta_rows:,} rows",
        [
            Figure("resume_over_stock_restore", resumed / stock),
            Figure("resume_over_numpy_read", resumed / read),
            Figure("resume_memory_over_table", memory),
        ],
        [
            f"medians of {arguments.rounds}: full and deltas, verified, {resumed:.2f} s",
            f"tf.train.Checkpoint of the full alone {stock:.2f} s, numpy reading all bytes {read:.2f} s",
        ],
    )


if __name__ == "__main__":
    main()
