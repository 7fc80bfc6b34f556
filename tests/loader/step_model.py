"""A model whose every variable carries the training step, its trainer, and the wait of these tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from exporter.export import ExportOptions, export_source
from exporter.sources import source_of
from hotdelta.chain import Kind, Manifest, Position, Scanner, directory_of
from hotdelta.chain.format import names
from hotdelta.train import DynamicTable
from hotdelta.train.loop import DeltaWriter
from loader import Loader, LoaderSettings, LoaderStatus, Version
from tests.waiting import LIMIT_SECONDS, wait_until

ROWS = 64
BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None}
SIGNATURE = "serving_default"
STEPS_TO_LIVE = 3
# Far apart, and neither a step nor one of `_keys`.
WANDERERS = -(np.arange(1, 61, dtype=np.int64) << 35)

Array = npt.NDArray[Any]


class StepModel(tf.Module):
    """Two tables and a dense variable; a prediction answers with all of it for some ids."""

    def __init__(self, rows: int = ROWS, width: int = 4) -> None:
        super().__init__()
        self.users = tf.Variable(tf.zeros([rows, width]))
        self.items = tf.Variable(tf.zeros([rows, 2]))
        self.bias = tf.Variable(tf.zeros([3]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def predict(self, ids: Any) -> dict[str, Any]:
        return {
            "users": tf.gather(self.users, ids),
            "items": tf.gather(self.items, ids),
            "bias": tf.identity(self.bias),
        }

    def learn(self, step: int, touched: Any, touch: Callable[[str, Any], None]) -> None:
        """Write the step into some rows and into the dense variable, and say which rows those are."""
        for name in ("users", "items"):
            _write(getattr(self, name), touched, step)
            touch(name, touched)
        self.bias.assign(tf.fill([3], float(step)))

    def bits(self) -> dict[str, bytes]:
        """All that a prediction for every row answers with."""
        ids = tf.range(int(self.users.shape[0]), dtype=tf.int64)
        return {name: value.numpy().tobytes() for name, value in self.predict(ids).items()}


class KeyedStepModel(StepModel):
    """The same with a table without a fixed vocabulary, in which keys come and go at each step.

    A new key is the step itself; that of the third step before goes. Of the WANDERERS a sixth goes, and those that went
    three steps before come back: into rows of others, because free by then are those of who went two steps before.
    """

    def __init__(self, rows: int = ROWS, width: int = 4) -> None:
        super().__init__(rows, width)
        self.keyed = DynamicTable(3, max_rows=100_000, name="keyed")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def predict(self, ids: Any) -> dict[str, Any]:
        step = tf.cast(self.bias[:1], tf.int64)
        moving = self.keyed.look_up(tf.concat([step, step - STEPS_TO_LIVE, WANDERERS], axis=0))
        return {
            **super().predict(ids),
            "keyed": self.keyed.look_up(_keys(ids)),
            "newest": moving[:1],
            "gone": moving[1:2] + self.bias,
            "wanderers": moving[2:],
        }

    def learn(self, step: int, touched: Any, touch: Callable[[str, Any], None]) -> None:
        super().learn(step, touched, touch)
        is_there = is_wanderer_there(step)
        self.keyed.remove([step - STEPS_TO_LIVE, *WANDERERS[~is_there]])
        keys = tf.concat([_keys(touched), [step]], axis=0)
        values = np.full([len(keys), 3], step, np.float32)
        keys = tf.concat([keys, WANDERERS[is_there]], axis=0)
        self.keyed.look_up(keys, training=True)
        rows = self.keyed.rows_of(keys)
        _write_values(self.keyed.rows, rows, np.concatenate([values, wanderers_at(step)[is_there]]))
        touch("keyed/rows", rows.numpy())


def is_wanderer_there(step: int) -> Array:
    """Each is there for three steps and gone for three. Before the first step none is there."""
    return (step > 0) & ((np.arange(len(WANDERERS)) + step) % (2 * STEPS_TO_LIVE) < STEPS_TO_LIVE)


def wanderers_at(step: int) -> Array:
    """What the WANDERERS read at a step: each its own number among them, from 1 on, or the default."""
    rows = np.full([len(WANDERERS), 3], step, np.float32)
    rows[:, 1] = np.arange(1, len(WANDERERS) + 1)
    return np.where(is_wanderer_there(step)[:, np.newaxis], rows, np.float32(0))


def _keys(ids: Any) -> Any:
    """Far apart, some of them negative, and none of them a step."""
    return tf.cast(ids, tf.int64) * 2**33 - 7


def _write(table: tf.Variable, rows: Any, step: int) -> None:
    _write_values(table, rows, tf.fill([len(rows), table.shape[1]], float(step)))


def _write_values(table: tf.Variable, rows: Any, values: Any) -> None:
    """Not table.scatter_update: the writer takes that for a write from outside, and saves the whole table."""
    tf.raw_ops.ResourceScatterUpdate(resource=table.handle, indices=rows, updates=values)


class Trainer:
    """Trains a StepModel by writing the step into rows; each `train` is one delta."""

    def __init__(self, run_dir: Path, *, model: StepModel | None = None, is_resuming: bool = True) -> None:
        self.run_dir = run_dir
        self.model = model or StepModel()
        tables = {"users": "touched", "items": "touched"}
        self.writer = DeltaWriter(
            run_dir,
            self.model,
            tables=tables,
            tracking=tables,
            signatures={SIGNATURE: self.model.predict},
            **BY_HAND,
            resume=is_resuming,
        )
        self.step = int(self.writer.resumed.step) if self.writer.resumed else 0
        self._is_open = True

    def train(self, ids: Any = None) -> Position:
        """Writes the next step into the rows and the dense variable, and commits a delta."""
        self._learn(ids)
        return self._committed(self.writer.save())

    def train_full(self, ids: Any = None) -> Position:
        """The same with a full and its closing delta."""
        self._learn(ids)
        return self._committed(self.writer.save_full())

    def close(self) -> None:
        """May be called again."""
        if self._is_open:
            self._is_open = False
            self.writer.close()

    def _learn(self, ids: Any) -> None:
        self.step += 1
        touched = np.arange(int(self.model.users.shape[0])) if ids is None else np.asarray(ids)
        self.model.learn(self.step, touched, self.writer.touch)
        self.writer.step()

    @staticmethod
    def _committed(position: Position | None) -> Position:
        assert position is not None
        return position


def rewind(trainer: Trainer) -> Trainer:
    """A new trainer that goes on from the state before the newest: it finds that one unreadable when it starts."""
    trainer.close()
    newest = Scanner(trainer.run_dir).scan().manifests[-1]
    path = serving_file(trainer.run_dir, newest)
    hidden = path.with_name(f"{path.name}.hidden")
    path.rename(hidden)
    rows, width = (int(size) for size in trainer.model.users.shape)
    fork = Trainer(trainer.run_dir, model=type(trainer.model)(rows, width))
    hidden.rename(path)
    assert fork.writer.resumed is not None
    assert fork.writer.resumed.position < newest.position
    return fork


def export(run_dir: Path, export_dir: Path, *, save_incr_model: bool = True) -> int:
    """Not proven, which takes most of the time of a small export: tests/exporter proves what it does."""
    options = ExportOptions(save_incr_model=save_incr_model)
    return int(export_source(source_of(run_dir), export_dir, options, prove=lambda *_: None).name)


@contextmanager
def serving(root: Path, **settings: Any) -> Iterator[Loader]:
    """A running loader on root/run and root/export. Polls fast, so that lost events only slow a test down."""
    parts = {
        name: settings.pop(name)
        for name in ("gate", "load_model", "hold_back", "companions")
        if name in settings
    }
    chosen = {"poll_seconds": 0.2, "late_data_seconds": 0.5, **settings}
    loader = Loader(
        LoaderSettings(export_dir=root / "export", checkpoint_dir=root / "run", **chosen),
        **parts,
    )
    loader.start()
    try:
        yield loader
    finally:
        loader.stop()


def wait_for_status(loader: Loader, condition: Callable[[LoaderStatus], bool], what: str) -> LoaderStatus:
    wait_until(lambda: condition(loader.status()), lambda: f"{what}; status is {loader.status()}")
    return loader.status()


def wait_for_position(loader: Loader, position: Position) -> None:
    assert loader.wait_for(position, LIMIT_SECONDS), f"{position} is not served: {loader.status()}"


def answer(loader: Loader, rows: int = ROWS) -> tuple[dict[str, Any], Version]:
    return loader.predict(SIGNATURE, {"ids": np.arange(rows)})


def assert_serves(loader: Loader, model: StepModel) -> Version:
    """The live model equals the trainer's, bit for bit."""
    outputs, version = answer(loader, int(model.users.shape[0]))
    for name, bits in model.bits().items():
        assert outputs[name].tobytes() == bits, (name, version)
    return version


def find_commit(run_dir: Path, position: Position, kind: Kind = Kind.DELTA) -> Manifest:
    manifests = Scanner(run_dir).scan().manifests
    return next(m for m in manifests if m.position == position and m.kind is kind)


def serving_file(run_dir: Path, manifest: Manifest) -> Path:
    file = next(file for file in manifest.files if file.role == names.ROLE_SERVING)
    return directory_of(run_dir, manifest.kind) / file.name


def commit_paths(run_dir: Path, manifest: Manifest) -> list[Path]:
    """The data files and the index, then the manifest."""
    directory = directory_of(run_dir, manifest.kind)
    files = [directory / file.name for file in manifest.files]
    return [*files, directory / names.manifest_name(manifest.prefix)]


def move_away(run_dir: Path, manifest: Manifest, away: Path) -> None:
    """Takes a commit out of the directory, the manifest first, as retention does."""
    away.mkdir(parents=True, exist_ok=True)
    for path in reversed(commit_paths(run_dir, manifest)):
        shutil.move(path, away / path.name)


def bring_back(run_dir: Path, manifest: Manifest, away: Path) -> None:
    for path in commit_paths(run_dir, manifest):
        shutil.move(away / path.name, path)
