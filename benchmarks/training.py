"""What incremental checkpoints cost a Keras trainer, as ratios measured in one run, interleaved.

`python -m benchmarks.training [--rounds 20] [--rows-large 10000000]`
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

import hotdelta.keras as hk
from benchmarks.report import Figure, peak_memory, print_report
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.history.scan import Scanner

BATCH, IDS, COLUMNS = 256, 4, 16
ZIPF_EXPONENT = 1.1


def build(rows: int, *, is_stock: bool = False, steps_per_call: int = 1) -> keras.Model:
    layer = keras.layers.Embedding if is_stock else hk.Embedding
    optimizer = keras.optimizers.Adagrad(0.05) if is_stock else hk.Adagrad(0.05)
    table = layer(rows, COLUMNS, embeddings_initializer="zeros", name="table")
    return model_around(table, optimizer, steps_per_call=steps_per_call)


def model_around(table: keras.Layer, optimizer: Any, *, steps_per_call: int = 1) -> keras.Model:
    """The model of this benchmark with any table."""
    ids = keras.Input((IDS,), dtype="int64", name="ids")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(table(ids))))
    model.compile(optimizer, "mse", steps_per_execution=steps_per_call)
    return model


def zipf_ids(rows: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Ids with Zipf frequencies, spread over the table as hashing would."""
    random = np.random.default_rng(seed)
    ranks = random.zipf(ZIPF_EXPONENT, shape) % rows
    return (ranks * 2_654_435_761) % rows


def batches(ids: np.ndarray, size: int = BATCH) -> tf.data.Dataset:
    labels = np.random.default_rng(0).random((len(ids), 1), np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(size, drop_remainder=True).repeat()


class StepTimes(keras.callbacks.Callback):
    """When each step ended; placed before the others, so that a step's time holds what they do after the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())

    def take(self) -> np.ndarray:
        ends, self.ends = self.ends, []
        return np.diff(ends)


class Timed:
    """One model under measurement, with its data and whatever callbacks it has."""

    def __init__(
        self,
        model: keras.Model,
        data: Callable[[int], tf.data.Dataset],
        *,
        steps_per_call: int = 1,
        callbacks: tuple[Any, ...] = (),
    ) -> None:
        """`data` makes the batches of a run of so many steps."""
        self.model = model
        self._data = data
        self._steps_per_call = steps_per_call
        self._times = StepTimes()
        self._callbacks = [self._times, *callbacks]

    def run(self, steps: int) -> np.ndarray:
        """Seconds of each step."""
        data = self._data(steps)
        self.model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=self._callbacks)
        return self._times.take() / self._steps_per_call


class Subject(Timed):
    """One with a fixed table."""

    def __init__(
        self, rows: int, *, is_stock: bool = False, steps_per_call: int = 1, callbacks: tuple[Any, ...] = ()
    ) -> None:
        model = build(rows, is_stock=is_stock, steps_per_call=steps_per_call)
        data = batches(zipf_ids(rows, (BATCH * 512, IDS), seed=1))
        super().__init__(model, lambda _: data, steps_per_call=steps_per_call, callbacks=callbacks)


WARM_UP_STEPS, ROUND_STEPS = 30, 60


def compare_steps(name: str, rounds: int, one: Timed, other: Timed) -> tuple[float, float]:
    """Seconds of a step of each, taken in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for subject in (one, other):
        subject.run(WARM_UP_STEPS)
    for _ in progress(name, rounds):
        times[0].append(float(np.median(one.run(ROUND_STEPS))))
        times[1].append(float(np.median(other.run(ROUND_STEPS))))
    return statistics.median(times[0]), statistics.median(times[1])


def measure_growth(rounds: int, small_rows: int, large_rows: int) -> float:
    small, large = compare_steps("step_growth", rounds, Subject(small_rows), Subject(large_rows))
    return large / small


def measure_stock(rounds: int, rows: int, *, steps_per_call: int) -> float:
    """A stock step over ours. With one step per call both also pay for Keras's own loop, 0.4 ms a step."""
    ours = Subject(rows, steps_per_call=steps_per_call)
    stock = Subject(rows, is_stock=True, steps_per_call=steps_per_call)
    times: tuple[list[float], list[float]] = ([], [])
    calls = max(4, 40 // steps_per_call)
    ours.run(calls * steps_per_call)
    stock.run(3 * steps_per_call)
    for _ in progress(f"stock_over_ours, {steps_per_call} steps a call", rounds):
        times[0].append(float(np.median(ours.run(calls * steps_per_call))))
        times[1].append(float(np.median(stock.run(3 * steps_per_call))))
    return statistics.median(times[1]) / statistics.median(times[0])


def measure_tracking(rounds: int, rows: int, directory: Path) -> tuple[float, float, float]:
    """Time of a step with DeltaCheckpoint, its saves included, over the mean of two equal subjects without it.

    Also what it costs in microseconds a step, and by what those two differ: the noise of the figure.
    """
    callback = hk.DeltaCheckpoint(directory, save_secs=None, save_incremental_secs=1)
    plain, twin, tracked = Subject(rows), Subject(rows), Subject(rows, callbacks=(callback,))
    subjects = (plain, twin, tracked)
    for subject in subjects:
        subject.run(30)
    steps = max(50, int(2.2 / float(np.median(plain.run(50)))))
    ratios, costs, same = [], [], []
    for turn in progress("tracking_overhead", rounds):
        order = subjects if turn % 2 == 0 else subjects[::-1]
        means = {id(subject): float(np.mean(subject.run(steps))) for subject in order}
        without = (means[id(plain)] + means[id(twin)]) / 2
        ratios.append(means[id(tracked)] / without)
        costs.append((means[id(tracked)] - without) * 1e6)
        same.append(means[id(twin)] / means[id(plain)])
    deltas = callback.status.deltas
    callback.close()
    print(f"    deltas written while measured: {deltas}")
    return statistics.median(ratios), statistics.median(costs), statistics.median(same)


def measure_bytes(rows: int, directory: Path) -> float:
    """Bytes of a delta of exactly 1 % of the rows over bytes of a full, slots included."""
    ids = np.random.default_rng(3).permutation(rows)[: rows // 100].reshape(-1, IDS)
    delta, full = save_both(build(rows), ids, directory)
    if delta.rows_changed != ids.size:
        raise SystemExit("the delta does not hold exactly one row in a hundred")
    return delta.total_bytes / full.total_bytes


def save_both(model: keras.Model, ids: np.ndarray, directory: Path) -> tuple[Manifest, Manifest]:
    """Trains these ids, and saves the delta of that and a full."""
    callback = hk.DeltaCheckpoint(directory, None, None)
    callback.resume(model)
    model.fit(ids, np.ones((len(ids), 1)), batch_size=BATCH, verbose=0, callbacks=[callback])
    callback.save_full()
    callback.close()
    manifests = Scanner(directory).scan().manifests
    deltas = [manifest for manifest in manifests if manifest.kind is Kind.DELTA and manifest.rows_changed]
    if len(deltas) != 1:
        raise SystemExit(f"{len(deltas)} deltas hold what was trained, and not one")
    return deltas[0], [manifest for manifest in manifests if manifest.kind is Kind.FULL][-1]


def measure_full(rows: int, directory: Path) -> tuple[float, float, list[str]]:
    """The longest step while a full is written beyond a usual one, and memory beyond rest over the table."""
    warm, calm = 200, 2000
    callback = hk.DeltaCheckpoint(
        directory, save_secs=None, save_steps=warm + calm + 100, save_incremental_secs=1
    )
    subject = Subject(rows, callbacks=(callback,))
    subject.run(warm)
    quiet = subject.run(calm)
    gc.collect()
    rest = psutil.Process().memory_info().rss
    fulls = callback.status.fulls
    busy: list[np.ndarray] = []
    with peak_memory() as peak:
        while callback.status.fulls == fulls:
            busy.append(subject.run(1000))
    steps = np.concatenate(busy)
    callback.close()
    table_bytes = rows * COLUMNS * 4
    notes = [
        f"without a full: median step {np.median(quiet) * 1e3:.2f} ms, longest {quiet.max() * 1e3:.1f} ms",
        f"during a full:  median step {np.median(steps) * 1e3:.2f} ms, longest {steps.max() * 1e3:.1f} ms",
        f"memory at rest {rest / 1e6:.0f} MB, peak {peak() / 1e6:.0f} MB, table {table_bytes / 1e6:.0f} MB",
    ]
    return float(steps.max() - np.median(quiet)) * 1e3, (peak() - rest) / table_bytes, notes


def progress(name: str, rounds: int) -> Iterator[int]:
    for number in range(rounds):
        print(f"\r  {name}: round {number + 1} of {rounds}", end="", flush=True)
        yield number
    print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="interleaved rounds of each comparison (default 20)"
    )
    parser.add_argument("--rows-large", type=int, default=10_000_000, help="rows of the large table")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        growth = measure_growth(arguments.rounds, 200_000, arguments.rows_large)
        stock = measure_stock(arguments.rounds, 2_000_000, steps_per_call=10)
        stock_single = measure_stock(arguments.rounds, 2_000_000, steps_per_call=1)
        overhead, overhead_us, same = measure_tracking(arguments.rounds, 2_000_000, directory / "tracking")
        share = measure_bytes(1_000_000, directory / "bytes")
        stall, memory, notes = measure_full(arguments.rows_large, directory / "full")
    print_report(
        f"Training, batch {BATCH} x {IDS} ids, Zipf {ZIPF_EXPONENT}, {COLUMNS} columns, Adagrad",
        [
            Figure("step_growth", growth, "at most 1.6"),
            Figure("stock_over_ours", stock, "at least 60"),
            Figure("stock_over_ours_with_keras_loop", stock_single),
            Figure("tracking_overhead", overhead, "at most 1.08"),
            Figure("tracking_overhead_us", overhead_us),
            Figure("tracking_a_a_ratio", same),
            Figure("delta_over_full_bytes", share, "at most 0.012"),
            Figure("full_save_stall_ms", stall),
            Figure("full_save_memory_over_table", memory),
        ],
        notes,
    )


if __name__ == "__main__":
    main()
