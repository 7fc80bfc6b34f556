"""What applying a delta to a live model costs, against reloading and against the bare memory copies.

`python -m benchmarks.apply [--scale 1.0]` (scale shrinks every table, for a quick look)
"""

from __future__ import annotations

import argparse
import gc
import logging
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

import hotdelta.keras as hk
from benchmarks.report import Figure, peak_memory, print_report, seconds_of
from benchmarks.served_table import (
    COLUMNS,
    TableTrainer,
    TrainerProcess,
    following,
    random_ids,
    read_and_assign,
)
from exporter import export_saved_model
from hotdelta.chain import Kind, Manifest, Scanner
from loader import Loader
from loader.checks.checks import Checks
from loader.files.delta_in_memory import DeltaFiles
from loader.model.live_model import LiveModel

REPEATS = 7
# Until then the history of what can be undone grows; afterwards its oldest entry goes with each new one.
UPDATES_TO_STEADY_STATE = 40


def measure_reload(directory: Path, rows: int) -> tuple[float, float, list[str]]:
    """Full reload over commit-to-served of a delta of 1 % of the rows, and peak memory over memory at rest."""
    trainer = TrainerProcess(directory, rows)
    export = trainer.export()
    feeds = random_ids(rows)
    with following(trainer) as loader:

        def update() -> float:
            return _commit_to_served(trainer, loader, feeds, rows // 100)

        for _ in range(UPDATES_TO_STEADY_STATE):
            update()
        memory = _peak_over_rest(update)
        # A reload after each update: what else goes on in the machine meets both.
        times = [(update(), _reload_seconds(export)) for _ in range(REPEATS)]
    trainer.stop()
    delta, reload = (statistics.median(seconds) for seconds in zip(*times, strict=True))
    return (
        reload / delta,
        memory,
        [f"{rows:,} rows: reload {reload:.2f} s, commit to served {delta * 1e3:.0f} ms"],
    )


def _peak_over_rest(update: Callable[[], float]) -> float:
    gc.collect()
    rest = psutil.Process().memory_info().rss
    with peak_memory() as peak:
        for _ in range(REPEATS):
            update()
    return peak() / rest


def _commit_to_served(trainer: TrainerProcess, loader: Loader, feeds: dict[str, Any], count: int) -> float:
    """Seconds from the manifest on disk to the first answer at its position."""
    before = loader.predict("serving_default", feeds)[1].position
    answered: list[float] = []

    def ask() -> None:
        """Every half millisecond, from before the commit on: it is seen while the trainer is still syncing."""
        pause = threading.Event()
        while not answered:
            _, version = loader.predict("serving_default", feeds)
            if version.position > before:
                answered.append(time.time())
            pause.wait(0.0005)

    trainer.write_rows(count)
    asking = threading.Thread(target=ask, name="asking")
    asking.start()
    committed = trainer.commit()
    asking.join(60)
    return answered[0] - committed.at


def _reload_seconds(export: Path) -> float:
    start = time.perf_counter()
    model = tf.saved_model.load(str(export))
    seconds = time.perf_counter() - start
    del model
    gc.collect()
    return seconds


class Applying:
    """One live model at rest, its chain, and deltas to apply to it by hand."""

    def __init__(self, directory: Path, rows: int, delta_rows: int, deltas: int) -> None:
        self._trainer = TableTrainer(directory, rows)
        self._model = LiveModel.load(self._trainer.export())
        self._schema = self._model.metadata.schema
        self._checks = Checks()
        self.run_dir = self._trainer.run_dir
        self.manifests: list[Manifest] = []
        for _ in range(deltas):
            self._trainer.commit_rows(delta_rows)
            self.manifests.append(self._trainer.newest())
        self._trainer.release()
        self._model.warm_up()
        self._model.settle()

    def _open(self, manifest: Manifest) -> DeltaFiles:
        with DeltaFiles(self.run_dir, manifest) as delta:
            delta.load()
        return delta

    def stage_and_apply(self, manifest: Manifest) -> float:
        def run() -> None:
            self._model.stage_rows(self._open(manifest).update(self._schema))
            self._model.apply()

        return seconds_of(run)

    def update(self, manifest: Manifest) -> float:
        """Verify, stage, keep the pre-image, apply."""

        def run() -> None:
            delta = self._open(manifest)
            delta.require_digests()
            self._model.stage_rows(delta.update(self._schema))
            self._model.preimage()
            self._model.apply()

        return seconds_of(run)

    def guarded_update(self, manifest: Manifest) -> float:
        """Everything that a server does: the layout and the values are looked at as well."""

        def run() -> None:
            delta = self._checks.open_delta(self.run_dir, manifest, self._schema)
            self._checks.digests(delta)
            update = delta.update(self._schema)
            self._model.stage_rows(update)
            preimage = self._model.preimage()
            accepted = self._checks.values.check_delta(manifest, self._schema, update, preimage)
            self._model.apply()
            self._checks.values.accept(accepted)

        return seconds_of(run)

    def close(self) -> None:
        self._model.close()


def measure_growth(directory: Path, small_rows: int, large_rows: int, delta_rows: int) -> float:
    deltas = REPEATS + 2
    small = Applying(directory / "small", small_rows, delta_rows, deltas)
    large = Applying(directory / "large", large_rows, delta_rows, deltas)
    times: tuple[list[float], list[float]] = ([], [])
    for one, other in zip(small.manifests, large.manifests, strict=True):
        times[0].append(small.stage_and_apply(one))
        times[1].append(large.stage_and_apply(other))
    small.close()
    large.close()
    return statistics.median(times[1][2:]) / statistics.median(times[0][2:])


def measure_limits(directory: Path, rows: int, delta_rows: int) -> tuple[list[float], list[str]]:
    """Stage and apply, an update, and a guarded update, over numpy reading the same bytes and assigning the rows."""
    applying = Applying(directory, rows, delta_rows, deltas=3 * (REPEATS + 2))
    ways = [applying.stage_and_apply, applying.update, applying.guarded_update]
    table = np.zeros((rows, COLUMNS), np.float32)
    bare: list[float] = []
    times: list[list[float]] = [[] for _ in ways]
    for index, manifest in enumerate(applying.manifests):
        times[index % len(ways)].append(ways[index % len(ways)](manifest))
        bare.append(_numpy_seconds(applying, manifest, table))
    applying.close()
    limit = statistics.median(bare[2:])
    medians = [statistics.median(seconds[2:]) for seconds in times]
    shown = ", ".join(
        f"{name} {seconds * 1e3:.1f} ms"
        for name, seconds in zip(
            ("numpy", "stage + apply", "update", "guarded"), [limit, *medians], strict=True
        )
    )
    return [median / limit for median in medians], [f"{delta_rows:,} rows: {shown}"]


def _numpy_seconds(applying: Applying, manifest: Manifest, table: np.ndarray) -> float:
    return seconds_of(read_and_assign(applying.run_dir, manifest, table))


def measure_predict(directory: Path, rows: int) -> float:
    """Predict time of a stock Keras Embedding model after a delta over before the first one."""
    ids = keras.Input((8,), dtype="int64", name="ids")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(rows, COLUMNS, name="table")(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(hidden))
    model.compile(hk.Adagrad(0.1), "mse")
    callback = hk.DeltaCheckpoint(directory / "run", None, None)
    callback.resume(model)
    live = LiveModel.load(export_saved_model(directory / "run", directory / "export", save_incr_model=True))
    live.settle()
    feeds = {"ids": np.random.default_rng(5).integers(0, rows, (1, 8))}
    before = _predict_seconds(live, feeds)
    model.train_on_batch(np.arange(80).reshape(10, 8), np.ones((10, 1)))
    callback.step()
    callback.save()
    manifest = _newest_delta(directory / "run")
    with DeltaFiles(directory / "run", manifest) as delta:
        live.stage_rows(delta.update(live.metadata.schema))
    live.apply()
    after = _predict_seconds(live, feeds)
    live.close()
    callback.close()
    return after / before


def _newest_delta(run_dir: Path) -> Manifest:
    return [manifest for manifest in Scanner(run_dir).scan().manifests if manifest.kind is Kind.DELTA][-1]


def _predict_seconds(live: LiveModel, feeds: dict[str, Any]) -> float:
    """The best of several rounds: what others do on the machine only ever adds."""
    return min(
        seconds_of(lambda: [live.predict("serving_default", feeds) for _ in range(300)])
        for _ in range(3 * REPEATS)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiply every table size (default 1.0)")
    scale = parser.parse_args().scale
    logging.basicConfig(level=logging.WARNING)

    def sized(rows: int) -> int:
        return max(200_000, int(rows * scale))

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        # First: what later parts free stays with the process, and would hide what an update takes.
        print("  reload against delta ...", flush=True)
        reload, memory, reloads = measure_reload(directory / "reload", sized(10_000_000))
        shutil.rmtree(directory / "reload")
        print("  predict before and after a delta ...", flush=True)
        predict = measure_predict(directory / "predict", sized(5_000_000))
        shutil.rmtree(directory / "predict")
        print("  apply on small and large tables ...", flush=True)
        growth = measure_growth(directory / "growth", sized(1_000_000), sized(20_000_000), 100_000)
        shutil.rmtree(directory / "growth")
        print("  apply against bare numpy ...", flush=True)
        over_limit, limits = measure_limits(directory / "limits", sized(5_000_000), 100_000)
        shutil.rmtree(directory / "limits")
    print_report(
        f"Applying deltas, {COLUMNS} columns, medians of {REPEATS}",
        [
            Figure("full_reload_over_delta", reload, "at least 20"),
            Figure("apply_growth", growth, "at most 1.3"),
            Figure("apply_over_limit", over_limit[0], "at most 1.3"),
            Figure("update_over_limit", over_limit[1], "at most 2.5"),
            Figure("guarded_update_over_limit", over_limit[2]),
            Figure("memory_over_table", memory, "at most 1.05"),
            Figure("predict_after_over_before", predict, "at most 1.1"),
        ],
        [*limits, *reloads],
    )


if __name__ == "__main__":
    main()
