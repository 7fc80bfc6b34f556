"""Every way in which a model may take rows from the table of a stock Embedding layer, and ways to read all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

ROWS, WIDTH = 5000, 4
ops = keras.ops


class Lookups(keras.Model):
    """Two tables of one size, which no call has used yet."""

    def __init__(self) -> None:
        super().__init__()
        self.items = keras.layers.Embedding(ROWS, WIDTH)
        self.more = keras.layers.Embedding(ROWS, WIDTH)
        for layer in (self.items, self.more):
            layer.build(())
        # Traced once, by whoever calls it first.
        self.traced = tf.function(self.items)

    @property
    def variable(self) -> tf.Variable:
        value: tf.Variable = self.items.embeddings.value
        return value

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.items(ids)


Case = Callable[[Lookups, tf.Tensor], tf.Tensor]


def _sparse(ids: tf.Tensor) -> tf.SparseTensor:
    """Two ids to each of two examples."""
    pairs = tf.reshape(ids, [2, 2])
    return tf.SparseTensor(tf.where(pairs >= 0), tf.reshape(pairs, [-1]), tf.constant([2, 2], tf.int64))


def _weights(ids: tf.Tensor) -> tf.SparseTensor:
    sparse = _sparse(ids)
    return sparse.with_values(tf.cast(sparse.values, tf.float32))


def _sum(model: Lookups, ids: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    return total + model.items(ids)


def _waited_for(model: Lookups, ids: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([model.variable.read_value()]):
        return model.items(ids)


def _unused(model: Lookups, ids: tf.Tensor) -> tf.Tensor:
    tf.reduce_sum(model.items.embeddings)
    return model.items(ids)


def _by_segments(model: Lookups, ids: tf.Tensor) -> tf.Tensor:
    return tf.sparse.segment_sum(model.variable.read_value_no_copy(), ids, tf.constant([0, 0, 1, 1]))


def _clipped(model: Lookups, ids: tf.Tensor) -> tf.Tensor:
    rows = tf.raw_ops.Shape(input=model.variable.read_value(), out_type=tf.int64)[0]
    return tf.gather(model.variable, tf.minimum(ids, rows - 1))


def _truncated(model: Lookups, ids: tf.Tensor) -> tf.Tensor:
    halves = tf.raw_ops.Cast(x=model.variable.read_value(), DstT=tf.bfloat16, Truncate=True)
    return tf.gather(halves, ids)


LOOKUPS: dict[str, Case] = {
    "layer": lambda model, ids: model.items(ids),
    "cond": lambda model, ids: ops.cond(tf.size(ids) > 1, lambda: model.items(ids), lambda: model.items(ids)),
    "switch": lambda model, ids: tf.switch_case(
        tf.size(ids) % 2, [lambda: model.items(ids), lambda: model.more(ids)]
    ),
    "map_fn": lambda model, ids: tf.map_fn(model.items, ids, fn_output_signature=tf.float32),
    "vectorized_map": lambda model, ids: tf.vectorized_map(model.items, ids),
    "ops_map": lambda model, ids: ops.map(model.items, ids),
    "ops_scan": lambda model, ids: ops.scan(
        lambda carry, each: (carry, model.items(each)), model.items(ids[0]), ids
    )[1],
    "fori_loop": lambda model, ids: ops.fori_loop(
        0, 2, lambda _, total: _sum(model, ids, total), tf.zeros([4, WIDTH])
    ),
    "function": lambda model, ids: model.traced(ids),
    "ragged": lambda model, ids: model.items(tf.RaggedTensor.from_row_lengths(ids, [1, 3])).to_tensor(),
    "sparse": lambda model, ids: model.items(_sparse(ids)),
    "gather": lambda model, ids: tf.gather(model.items.embeddings, ids),
    "gather_variable": lambda model, ids: tf.gather(model.variable, ids),
    "gather_value": lambda model, ids: tf.gather(model.variable.read_value(), ids),
    "gather_cast": lambda model, ids: tf.gather(tf.cast(model.items.embeddings, tf.float16), ids),
    "gather_nd": lambda model, ids: tf.gather_nd(model.items.embeddings, ids[:, tf.newaxis]),
    "gather_in_cond": lambda model, ids: tf.cond(
        tf.size(ids) > 1, lambda: tf.gather(model.items.embeddings, ids), lambda: tf.zeros([4, WIDTH])
    ),
    "gather_in_map": lambda model, ids: tf.map_fn(
        lambda each: tf.gather(model.items.embeddings, each), ids, fn_output_signature=tf.float32
    ),
    "take": lambda model, ids: ops.take(model.items.embeddings, ids, axis=0),
    "take_in_function": lambda model, ids: tf.function(
        lambda each: ops.take(model.items.embeddings, each, axis=0)
    )(ids),
    "lookup": lambda model, ids: tf.nn.embedding_lookup(model.items.embeddings, ids),
    "lookup_in_shards": lambda model, ids: tf.nn.embedding_lookup(
        [model.items.embeddings, model.more.embeddings], ids
    ),
    "sparse_lookup": lambda model, ids: tf.nn.embedding_lookup_sparse(model.variable, _sparse(ids), None),
    "weighted_lookup": lambda model, ids: tf.nn.embedding_lookup_sparse(
        model.variable, _sparse(ids), _weights(ids)
    ),
    "safe_lookup": lambda model, ids: tf.nn.safe_embedding_lookup_sparse(model.variable, _sparse(ids)),
    "segments": _by_segments,
    "clipped": _clipped,
    "waited_for": _waited_for,
    "unused": _unused,
}

WHOLE_READS: dict[str, Case] = {
    "tied": lambda model, ids: tf.matmul(model.items(ids), model.items.embeddings, transpose_b=True),
    "one_hot": lambda model, ids: tf.one_hot(ids, ROWS) @ model.items.embeddings,
    "columns": lambda model, ids: tf.gather(model.items.embeddings, ids[:2] % WIDTH, axis=1),
    "slice": lambda model, _: model.items.embeddings[2:5],
    "value_in_map": lambda model, ids: _in_map(tf.convert_to_tensor(model.items.embeddings), ids),
    "bad_ids_ignored": lambda model, ids: tf.gather_nd(
        model.items.embeddings, ids[:, tf.newaxis], bad_indices_policy="IGNORE"
    ),
    "short_ids": lambda model, ids: tf.gather(model.items.embeddings, tf.cast(ids, tf.int16)),
    "truncated": _truncated,
    "recompute_grad": lambda model, ids: tf.recompute_grad(model.items)(ids),
}


def _in_map(value: tf.Tensor, ids: tf.Tensor) -> Any:
    return tf.map_fn(lambda each: tf.gather(value, each), ids, fn_output_signature=tf.float32)
