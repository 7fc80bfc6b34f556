"""SGD, with and without momentum, whose step costs the rows it touches."""

from __future__ import annotations

import keras
import tensorflow as tf

from hotdelta.keras.optimizers.row_gradients import RowGradient
from hotdelta.keras.optimizers.row_wise import RowWise, read_rows, write_rows
from hotdelta.keras_internals import Slot, slot_of


@keras.saving.register_keras_serializable(package="hotdelta")
class SGD(RowWise, keras.optimizers.SGD):
    """keras.optimizers.SGD, row-wise.

    Without momentum equal to it bit for bit. With momentum it is lazy: the velocity of a row decays, and moves the
    row, only in the steps that touch it, where Keras moves every row in every step.
    """

    def update_rows(
        self, gradient: RowGradient, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> list[tf.Operation]:
        ids = gradient.indices
        descent = gradient.values * learning_rate
        if self.momentum == 0:
            return [write_rows(variable, ids, read_rows(variable, ids) - descent)]

        slot = slot_of(self, Slot.MOMENTUM_OF_SGD, variable)
        momentum = tf.cast(self.momentum, variable.dtype)
        velocity = read_rows(slot, ids) * momentum - descent
        step = velocity * momentum - descent if self.nesterov else velocity
        rows = read_rows(variable, ids) + step
        return [write_rows(slot, ids, velocity), write_rows(variable, ids, rows)]
