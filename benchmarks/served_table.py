"""A chain and an export of one table, for the benchmarks of loading and serving."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import hotdelta.keras as hk
from exporter import export_saved_model
from hotdelta.chain import BundleReader, Kind, Manifest, Position, Scanner, directory_of
from hotdelta.chain.format import names
from hotdelta.train import DeltaWriter, DynamicTable
from loader import Loader, LoaderSettings

COLUMNS, IDS = 16, 8
TABLE = "table"
BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None, "scrub_saves": 0}


class OneTable(tf.Module):
    """Looks rows up and sums them; `step` is carried along so that an answer shows its age."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = tf.Variable(tf.zeros([rows, COLUMNS]), name=TABLE)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sums": tf.reduce_sum(tf.gather(self.table, ids), axis=1)}

    def open_writer(self, run_dir: Path) -> DeltaWriter:
        return DeltaWriter(
            run_dir,
            self,
            tables=[TABLE],
            tracking={TABLE: "touched"},
            signatures={"serving_default": self.serve},
            **BY_HAND,
        )

    def write_rows(self, writer: DeltaWriter, ids: np.ndarray, values: np.ndarray) -> None:
        tf.raw_ops.ResourceScatterUpdate(resource=self.table.handle, indices=ids, updates=values)
        writer.touch(TABLE, ids)


class Ranker(OneTable):
    """Puts the rows of IDS ids side by side and scores them with two dense layers."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        random = tf.random.Generator.from_seed(3)
        self.table.assign(random.normal(self.table.shape))
        self.hidden = tf.Variable(random.normal([IDS * COLUMNS, 64], stddev=0.1), name="hidden")
        self.score = tf.Variable(random.normal([64, 1], stddev=0.1), name="score")

    @tf.function(input_signature=[tf.TensorSpec([None, IDS], tf.int64, name="ids")])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        side_by_side = tf.reshape(self.look_up(ids), [-1, IDS * COLUMNS])
        return {"score": tf.nn.relu(side_by_side @ self.hidden) @ self.score}

    def look_up(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.table, ids)


class KeyedRanker(Ranker):
    """The same with a table that has keys: the ids. Its rows are trained; one in ten of those belongs to a new key."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        fixed, self.table = self.table, DynamicTable(COLUMNS, max_rows=20 * rows, name=TABLE)
        self.table.assign(np.arange(rows), fixed.numpy())
        self._next_key = rows
        self._optimizer = hk.Adagrad(0.05)
        self._optimizer.build([self.table.rows])

    def look_up(self, ids: tf.Tensor) -> tf.Tensor:
        return self.table.look_up(ids)

    def open_writer(self, run_dir: Path) -> DeltaWriter:
        signatures = {"serving_default": self.serve}
        return DeltaWriter(run_dir, self, optimizer=self._optimizer, signatures=signatures, **BY_HAND)

    def write_rows(self, writer: DeltaWriter, ids: np.ndarray, values: np.ndarray) -> None:
        new = max(1, len(ids) // 10)
        keys = np.concatenate([ids[new:], np.arange(self._next_key, self._next_key + new)])
        self._next_key += new
        self._train(tf.constant(keys), tf.constant(values))

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, COLUMNS], tf.float32)]
    )
    def _train(self, keys: tf.Tensor, values: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.table.look_up(keys, training=True) * values)
        self._optimizer.apply([tape.gradient(loss, self.table.rows)], [self.table.rows])


@dataclass(frozen=True)
class Committed:
    position: Position
    at: float


class TableTrainer:
    """Writes chosen rows and commits them: a trainer without training."""

    def __init__(self, directory: Path, rows: int, model: type[OneTable] = OneTable) -> None:
        self.run_dir, self.export_dir = directory / "run", directory / "export"
        self.rows = rows
        self._module = model(rows)
        self._random = np.random.default_rng(7)
        self._scanner = Scanner(self.run_dir)
        self._writer = self._module.open_writer(self.run_dir)

    def export(self) -> Path:
        return export_saved_model(self.run_dir, self.export_dir, save_incr_model=True)

    def commit_rows(self, count: int) -> Position:
        """A delta of so many random rows."""
        self.write_rows(count)
        self.commit()
        return self.newest().position

    def commit(self) -> None:
        self._writer.save()

    def commit_full(self) -> None:
        self._writer.save_full()

    def write_rows(self, count: int) -> None:
        ids = np.sort(self._random.choice(self.rows, count, replace=False))
        values = self._random.random((count, COLUMNS), np.float32)
        self._module.write_rows(self._writer, ids, values)
        self._writer.step()

    def newest(self) -> Manifest:
        return self._scanner.scan().manifests[-1]

    def commit_timed(self) -> Committed:
        """When the manifest appeared, by the clock of the file system."""
        self.commit()
        manifest = self.newest()
        path = directory_of(self.run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
        return Committed(manifest.position, path.stat().st_ctime)

    def release(self) -> None:
        """Let go of the table: the benchmark measures the memory of serving, not of training."""
        self._writer.close()
        del self._module


class TrainerProcess:
    """A TableTrainer in a process of its own, as training is: it shares cores and disk with serving, but no GIL."""

    def __init__(self, directory: Path, rows: int, model: type[OneTable] = OneTable) -> None:
        self.run_dir, self.export_dir = directory / "run", directory / "export"
        context = multiprocessing.get_context("spawn")
        self._calls, others = context.Pipe()
        self._process = context.Process(target=_obey, args=(others, directory, rows, model), name="trainer")
        self._process.start()
        others.close()

    def export(self) -> Path:
        path: Path = self._ask("export")
        return path

    def write_rows(self, count: int) -> None:
        self._ask("write_rows", count)

    def commit(self) -> Committed:
        """A delta of what was written, and when its manifest appeared."""
        committed: Committed = self._ask("commit_timed")
        return committed

    def stop(self) -> None:
        self._ask("release")
        self._calls.close()
        self._process.join()

    def _ask(self, method: str, *arguments: int) -> Any:
        self._calls.send((method, arguments))
        return self._calls.recv()


def _obey(calls: Connection, directory: Path, rows: int, model: type[OneTable]) -> None:
    trainer = TableTrainer(directory, rows, model)
    while True:
        try:
            method, arguments = calls.recv()
        except EOFError:
            return
        calls.send(getattr(trainer, method)(*arguments))


def random_ids(rows: int, count: int = 64) -> dict[str, Any]:
    return {"ids": np.random.default_rng(11).integers(0, rows, count)}


@contextmanager
def following(trainer: TrainerProcess) -> Iterator[Loader]:
    """A loader that follows the trainer's chain, ready to answer."""
    loader = Loader(LoaderSettings(export_dir=trainer.export_dir, checkpoint_dir=trainer.run_dir))
    loader.start()
    try:
        while not loader.status().is_ready:
            threading.Event().wait(0.05)
        yield loader
    finally:
        loader.stop()


def read_and_assign(run_dir: Path, manifest: Manifest, table: np.ndarray) -> Callable[[], None]:
    """The least that taking a delta can cost: numpy reads its bytes and assigns the rows."""
    directory = directory_of(run_dir, Kind.DELTA)
    with BundleReader(directory, manifest.prefix) as reader:
        ids, rows = reader.entries[TABLE + names.IDS_SUFFIX], reader.entries[TABLE + names.ROWS_SUFFIX]
    path = directory / names.data_name(manifest.prefix, 0, 2)

    def run() -> None:
        with path.open("rb") as file:
            file.seek(ids.offset)
            places = np.fromfile(file, np.int64, ids.shape[0])
            file.seek(rows.offset)
            values = np.fromfile(file, np.float32, rows.shape[0] * COLUMNS).reshape(-1, COLUMNS)
        table[places] = values

    return run
