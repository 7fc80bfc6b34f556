"""Optimizers over embedding variables: their slots grow along, and Adam moves the rows of the step only."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.deeprec.adam_async import adam_move
from hotdelta.compat.v1.deeprec.variable_writes import subtract_rows, write_rows
from hotdelta.compat.v1.embedding.reserved import ReservedVariable
from hotdelta.compat.v1.embedding.variable import EmbeddingVariable
from hotdelta.tensorflow_internals import OpenAdam, make_slots_by

v1 = tf.compat.v1


class AdamOptimizer(OpenAdam):
    """tf.train.AdamOptimizer. Of an embedding variable it reads and writes the rows of a step, as DeepRec's does."""

    def update_rows(self, variable: Any, ids: tf.Tensor, grad: tf.Tensor) -> tf.Operation | None:
        if not isinstance(variable, EmbeddingVariable):
            return None
        learning_rate, beta1, beta2, epsilon, *powers = self.numbers(variable.dtype)
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        new_m = tf.gather(m, ids) * beta1 + grad * (1 - beta1)
        new_v = tf.gather(v, ids) * beta2 + tf.square(grad) * (1 - beta2)
        move = adam_move(new_m, new_v, learning_rate, epsilon, powers=(powers[0], powers[1]))
        return tf.group(
            subtract_rows(variable, ids, move),
            write_rows(m, ids, new_m),
            write_rows(v, ids, new_v),
        )


def _reserve_slot(variable: Any, first_row: Any, name: str, shape: Any) -> ReservedVariable | None:
    if not isinstance(variable, EmbeddingVariable) or not _has_its_rows(shape, variable):
        return None
    # As tf.train calls slots.
    with v1.variable_scope(None, f"{variable.op.name}/{name}", auxiliary_name_scope=False) as scope:
        return variable.table.add_slot(first_row(), scope.name)


def _has_its_rows(shape: Any, variable: EmbeddingVariable) -> bool:
    shape = tf.TensorShape(shape)
    return bool(shape.rank) and shape.as_list()[0] == variable.table.settings.capacity


make_slots_by(_reserve_slot)
