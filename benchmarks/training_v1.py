"""What recording and deltas cost a TensorFlow 1 trainer, as ratios measured in one run, interleaved.

`python -m benchmarks.training_v1 [--rounds 60]`
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

import hotdelta.compat.v1 as tf
from benchmarks.report import Figure, print_report
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.scan import Scanner
from hotdelta.compat.v1.chain.open_chains import wait_for_writes

ROWS, COLUMNS, BATCH, IDS = 1_000_000, 16, 1024, 4
STEPS_IN_ROUND = 40
DELTAS, STEPS_BETWEEN_DELTAS = 10, 100


class Subject:
    """One training in a graph and a Session of its own."""

    def __init__(self, directory: Path, *, is_keyed: bool = False, **options: Any) -> None:
        """`is_keyed`: the table is an embedding variable, which counts its keys."""
        random = np.random.default_rng(1)
        self._batches = [random.integers(0, ROWS, (BATCH, IDS)) for _ in range(64)]
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._build(is_keyed=is_keyed)
            self.session = tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(directory),
                save_checkpoint_steps=10**9,
                log_step_count_steps=None,
                save_summaries_steps=None,
                **options,
            )

    def _build(self, *, is_keyed: bool) -> None:
        table = _embedding_variable() if is_keyed else _parted_table()
        self._ids = tf.placeholder(tf.int64, [BATCH, IDS])
        net = tf.layers.flatten(tf.nn.embedding_lookup(table, self._ids))
        for units in (64, 32):
            net = tf.layers.dense(net, units, tf.nn.relu)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(net, 1) - 1.0))
        optimizer = tf.train.AdagradOptimizer(0.05)
        self._train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())

    def run(self, steps: int = STEPS_IN_ROUND) -> float:
        """Steps per second, by the median step: others use this machine, too."""
        ends = [time.perf_counter()]
        for step in range(steps):
            self.session.run(self._train, {self._ids: self._batches[step % len(self._batches)]})
            ends.append(time.perf_counter())
        return 1 / statistics.median(np.diff(ends))


def _parted_table() -> Any:
    return tf.get_variable("table", [ROWS, COLUMNS], partitioner=tf.fixed_size_partitioner(4))


def _embedding_variable() -> Any:
    option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2), max_rows=ROWS)
    return tf.get_embedding_variable("table", COLUMNS, ev_option=option)


def measure_keys(rounds: int, directory: Path) -> float:
    """A step of an embedding variable whose keys are known over one of a table with as many rows; both record."""
    table = Subject(directory / "table", save_incremental_checkpoint_steps=10**9)
    keyed = Subject(directory / "keyed", is_keyed=True, save_incremental_checkpoint_steps=10**9)
    for subject in (table, keyed, keyed):
        subject.run(64)
    ratios = []
    for turn in range(rounds):
        print(f"\r  embedding_variable_over_table: round {turn + 1} of {rounds}", end="", flush=True)
        ratios.append(table.run() / keyed.run())
    print()
    return statistics.median(ratios)


def measure_recording(rounds: int, directory: Path) -> tuple[float, float]:
    """Speed without recorders over speed with, divided by what two equal runs without differ by; and that."""
    plain, twin = Subject(directory / "plain"), Subject(directory / "twin")
    recording = Subject(directory / "recording", save_incremental_checkpoint_steps=10**9)
    subjects = (plain, twin, recording)
    for subject in subjects:
        subject.run()
    ratios: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        print(f"\r  recording_overhead: round {turn + 1} of {rounds}", end="", flush=True)
        order = subjects[turn % 3 :] + subjects[: turn % 3]
        speed = {id(subject): subject.run() for subject in order}
        ratios[0].append(speed[id(plain)] / speed[id(recording)])
        ratios[1].append(speed[id(plain)] / speed[id(twin)])
    print()
    same = statistics.median(ratios[1])
    return statistics.median(ratios[0]) / same, same


def measure_spread(directory: Path) -> tuple[float, list[int]]:
    """Bytes of the largest of ten deltas over those of the smallest; each has the same number of steps behind it."""
    subject = Subject(directory, save_incremental_checkpoint_steps=STEPS_BETWEEN_DELTAS)
    subject.run(1)
    for _ in range(DELTAS):
        subject.run(STEPS_BETWEEN_DELTAS)
        # A delta that is due while another is being written is put off, and then has more steps behind it.
        wait_for_writes(directory)
    deltas = [manifest for manifest in Scanner(directory).scan().manifests if manifest.kind is Kind.DELTA]
    sizes = [delta.total_bytes for delta in deltas[:DELTAS]]
    if len(sizes) != DELTAS:
        raise RuntimeError(f"{len(sizes)} deltas were written, not {DELTAS}")
    return max(sizes) / min(sizes), sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=60, help="interleaved rounds of the comparison (default 60)"
    )
    arguments = parser.parse_args()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as scratch:
        overhead, same = measure_recording(arguments.rounds, Path(scratch))
        keys = measure_keys(arguments.rounds // 2, Path(scratch) / "keys")
        spread, sizes = measure_spread(Path(scratch) / "spread")
    print_report(
        f"TensorFlow 1 training, {ROWS:,} rows in 4 parts, batch {BATCH} x {IDS} ids, MLP 64-32-1, Adagrad",
        [
            Figure("recording_overhead", overhead, "at most 1.05"),
            Figure("recording_a_a_ratio", same),
            Figure("embedding_variable_over_table", keys),
            Figure("delta_bytes_spread", spread, "at most 1.2"),
        ],
        [f"deltas of {min(sizes):,} to {max(sizes):,} bytes"],
    )


if __name__ == "__main__":
    main()
