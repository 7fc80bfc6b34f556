"""What undoing a delta costs, against applying it, and what keeping the pre-image adds to an apply.

`python -m benchmarks.undo [--scale 1.0]` (scale shrinks every table, for a quick look)
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.report import Figure, print_report, seconds_of
from benchmarks.served_table import COLUMNS, TableTrainer
from hotdelta.chain import Manifest
from loader.files.delta_in_memory import DeltaFiles
from loader.model.live_model import LiveModel

REPEATS = 9
SHARE = 100


class Undoing:
    """One live model and one delta after the other: applied, undone, applied again."""

    def __init__(self, directory: Path, rows: int) -> None:
        self._trainer = TableTrainer(directory, rows)
        self._model = LiveModel.load(self._trainer.export())
        self._model.warm_up()
        self._model.settle()
        self._rows = rows // SHARE

    def next_delta(self) -> Manifest:
        self._trainer.commit_rows(self._rows)
        return self._trainer.newest()

    def stage(self, manifest: Manifest) -> None:
        with DeltaFiles(self._trainer.run_dir, manifest) as delta:
            self._model.stage_rows(delta.update(self._model.metadata.schema))

    def measure(self) -> tuple[float, float, float]:
        """Seconds of: apply without a pre-image, undo, apply with a pre-image."""
        manifest = self.next_delta()
        self.stage(manifest)
        preimage = self._model.preimage()
        self._model.apply()

        def undo() -> None:
            self._model.stage_rows(preimage)
            self._model.apply()

        def apply_alone() -> None:
            self.stage(manifest)
            self._model.apply()

        def apply_and_keep() -> None:
            self.stage(manifest)
            self._model.preimage()
            self._model.apply()

        undone = [seconds_of(undo)]
        alone = seconds_of(apply_alone)
        undone.append(seconds_of(undo))
        keeping = seconds_of(apply_and_keep)
        return alone, statistics.mean(undone), keeping

    def close(self) -> None:
        self._model.close()
        self._trainer.release()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the table size (default 1.0)")
    rows = max(200_000, int(10_000_000 * parser.parse_args().scale))
    with tempfile.TemporaryDirectory() as scratch:
        undoing = Undoing(Path(scratch), rows)
        rounds = [undoing.measure() for _ in range(REPEATS + 2)][2:]
        undoing.close()
    alone, undo, keeping = (statistics.median(values) for values in zip(*rounds, strict=True))
    print_report(
        f"Undoing a delta of {rows // SHARE:,} rows of {rows:,}, {COLUMNS} columns, medians of {REPEATS}",
        [
            Figure("rollback_over_apply", undo / keeping, "at most 1.5"),
            Figure("preimage_overhead", keeping / alone),
        ],
        [f"apply {alone * 1e3:.1f} ms, with pre-image {keeping * 1e3:.1f} ms, undo {undo * 1e3:.1f} ms"],
    )


if __name__ == "__main__":
    main()
