"""A small Estimator with a table, which trains the same each time, and fakes that note what they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hotdelta.compat.v1 as tf
from tests.compat.graph_mode.small_graphs import COLUMNS, ROWS, settle

BATCH = 5
FIRST_VERSION = 1_700_000_000


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    table = tf.get_variable("table", [ROWS, COLUMNS], initializer=tf.random_uniform_initializer(seed=1))
    rows = tf.nn.embedding_lookup(table, features["id"])
    score = tf.layers.dense(rows, 1, kernel_initializer=tf.ones_initializer())[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"score": score})
    loss = tf.losses.mean_squared_error(labels, score)
    step = tf.train.get_global_step()
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def hooked_model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
    """Many make their own saving hook, in every mode."""
    scaffold = tf.train.Scaffold(incremental_save_restore=True)
    hook = tf.train.CheckpointSaverHook(
        config.model_dir, save_steps=4, scaffold=scaffold, incremental_save_steps=2
    )
    return model_fn(features, labels, mode)._replace(scaffold=scaffold, training_chief_hooks=[hook])


def estimator_of(model_dir: Path, model: Any = model_fn, **options: Any) -> Any:
    options.setdefault("save_checkpoints_steps", 4)
    config = tf.estimator.RunConfig(tf_random_seed=1, log_step_count_steps=None, **options)
    return tf.estimator.Estimator(model, str(model_dir), config)


def batches(count: int | None = None, rows: range = range(ROWS)) -> Any:
    """An input function of so many batches of other rows each; None: without end."""

    def input_fn() -> Any:
        ids = np.array(rows)
        data = tf.data.Dataset.from_tensor_slices(({"id": ids}, (ids % 7).astype("f4")))
        endless = data.repeat().batch(BATCH)
        return endless if count is None else endless.take(count)

    return input_fn


def serving_input() -> Any:
    ids = tf.placeholder(tf.int64, [None], name="id")
    return tf.estimator.export.ServingInputReceiver({"id": ids}, {"id": ids})


class SettlingHook(tf.train.SessionRunHook):
    """No delta is put off because another one is still being written."""

    def before_run(self, run_context: Any) -> None:
        settle()


@dataclass(frozen=True)
class Note:
    path: str
    metrics: dict[str, Any]
    is_final: bool

    @property
    def step(self) -> int:
        return int(self.metrics["global_step"])


class NotingExporter(tf.estimator.Exporter):
    def __init__(self, name: str = "noting") -> None:
        self._name = name
        self.notes: list[Note] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def steps(self) -> list[int]:
        return [note.step for note in self.notes]

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Any,
        is_the_final_export: bool,
    ) -> bytes | None:
        self.notes.append(Note(checkpoint_path, dict(eval_result), is_the_final_export))
        return export_path.encode()


class FakeEstimator:
    """Exports empty directories."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = str(model_dir)
        self.asked: list[dict[str, Any]] = []

    def export_saved_model(self, export_dir: str, receiver: Any, **options: Any) -> bytes:
        self.asked.append({"receiver": receiver, **options})
        path = Path(export_dir) / str(FIRST_VERSION + len(self.asked))
        path.mkdir(parents=True)
        return str(path).encode()


def train_spec(max_steps: int | None, count: int | None = None) -> Any:
    return tf.estimator.TrainSpec(batches(count), max_steps, hooks=[SettlingHook()])


def eval_spec(exporters: Any, **options: Any) -> Any:
    options.setdefault("throttle_secs", 0)
    return tf.estimator.EvalSpec(batches(ROWS // BATCH), exporters=exporters, **options)
