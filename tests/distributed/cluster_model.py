"""What a cluster trains: a sharded table and a dense layer, with updates written out, or those of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import hotdelta.keras as hk
from hotdelta.train.tables.sharded import parts_of

ROWS, WIDTH, BATCH = 203, 4, 16
RATE = 0.1


class Ranker(tf.Module):
    """A sharded table with its Adagrad slot, and a dense layer: made in a strategy's scope, or outside to be served."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.random.stateless_uniform([ROWS, WIDTH], [1, 2]), name="table")
        self.kernel = tf.Variable(tf.random.stateless_uniform([WIDTH, 1], [3, 4]), name="kernel")
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def score(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.nn.embedding_lookup(self.table, ids)
        return {"score": rows @ self.kernel, "rows": rows}


class Training:
    """Adagrad on rows, written out: what a custom loop for parameter servers looks like."""

    def __init__(self, model: Ranker, slot: Any) -> None:
        self._model = model
        self._slot = slot

    @tf.function
    def step(self, seed: tf.Tensor) -> None:
        model = self._model
        ids = tf.random.stateless_uniform([BATCH], seed, 0, ROWS, tf.int64)
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(model.table, ids)
            loss = tf.reduce_mean(tf.square(tf.matmul(rows, whole(model.kernel)) - 1.0))
        gradients = tape.gradient(loss, [*parts_of(model.table), *parts_of(model.kernel)])
        parts = zip(parts_of(model.table), parts_of(self._slot), gradients, strict=False)
        for table, slot, gradient in parts:
            self._update(table, slot, gradient)
        for kernel, gradient in zip(
            parts_of(model.kernel), gradients[len(parts_of(model.table)) :], strict=True
        ):
            kernel.assign_sub(RATE * gradient)
        model.step.assign_add(1)

    def _update(self, table: tf.Variable, slot: tf.Variable, gradient: tf.IndexedSlices) -> None:
        ids, places = tf.unique(gradient.indices)
        rows = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
        slot.scatter_add(tf.IndexedSlices(tf.square(rows), ids))
        table.scatter_sub(tf.IndexedSlices(RATE * rows / tf.sqrt(slot.sparse_read(ids) + 1e-7), ids))


class OptimizerTraining:
    """The same with a Keras optimizer that was built with the shards."""

    def __init__(self, model: Ranker, optimizer: Any) -> None:
        self._model = model
        self._optimizer = optimizer

    @tf.function
    def step(self, seed: tf.Tensor) -> None:
        tf.distribute.get_strategy().run(self._train, args=(seed,))

    def _train(self, seed: tf.Tensor) -> None:
        model = self._model
        ids = tf.random.stateless_uniform([BATCH], seed, 0, ROWS, tf.int64)
        variables = [*parts_of(model.table), *parts_of(model.kernel)]
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(model.table, ids)
            loss = tf.reduce_mean(tf.square(tf.matmul(rows, whole(model.kernel)) - 1.0))
        self._optimizer.apply(tape.gradient(loss, variables), variables)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adagrad": lambda: hk.Adagrad(RATE),
    "every row": lambda: hk.Adagrad(RATE, weight_decay=0.01),
}


def slots_of(optimizer: Any) -> dict[str, Any]:
    """The accumulators of the table's shards, as one."""
    parts = [slot._value for slot in optimizer._accumulators if "table" in slot.path]
    return {"optimizer/accumulators/table": ShardedVariable(parts)}


def whole(variable: Any) -> tf.Tensor:
    return tf.concat([part.read_value() for part in parts_of(variable)], axis=0)
