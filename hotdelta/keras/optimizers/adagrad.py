"""Adagrad whose step costs the rows it touches."""

from __future__ import annotations

import keras
import tensorflow as tf

from hotdelta.keras.optimizers.row_gradients import RowGradient
from hotdelta.keras.optimizers.row_wise import RowWise, read_rows, write_rows
from hotdelta.keras_internals import Slot, slot_of


@keras.saving.register_keras_serializable(package="hotdelta")
class Adagrad(RowWise, keras.optimizers.Adagrad):
    """keras.optimizers.Adagrad, row-wise. Equal to it bit for bit: Adagrad leaves rows without a gradient alone."""

    def update_rows(
        self, gradient: RowGradient, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> list[tf.Operation]:
        ids, grad = gradient.indices, gradient.values
        slot = slot_of(self, Slot.ACCUMULATOR, variable)

        accumulator = read_rows(slot, ids) + tf.square(grad)
        step = learning_rate * grad / tf.sqrt(accumulator + self.epsilon)
        rows = read_rows(variable, ids) - step
        return [write_rows(slot, ids, accumulator), write_rows(variable, ids, rows)]
