"""FTRL whose step costs the rows it touches."""

from __future__ import annotations

import keras
import tensorflow as tf

from hotdelta.keras.optimizers.row_gradients import RowGradient
from hotdelta.keras.optimizers.row_wise import RowWise, read_rows, write_rows
from hotdelta.keras_internals import Slot, slot_of


@keras.saving.register_keras_serializable(package="hotdelta")
class Ftrl(RowWise, keras.optimizers.Ftrl):
    """keras.optimizers.Ftrl, row-wise: rows without a gradient are left alone.

    Keras computes every row again from its slots in every step, which in the first one replaces the initial value of
    a row that was never touched.
    """

    def update_rows(
        self, gradient: RowGradient, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> list[tf.Operation]:
        ids, grad = gradient.indices, gradient.values
        accumulator_slot, linear_slot = (
            slot_of(self, slot, variable) for slot in (Slot.ACCUMULATOR, Slot.LINEAR)
        )
        rows, accumulator = read_rows(variable, ids), read_rows(accumulator_slot, ids)

        shrunk = grad + 2 * self.l2_shrinkage_regularization_strength * rows
        new_accumulator = accumulator + tf.square(grad)
        new_power = tf.pow(new_accumulator, -self.learning_rate_power)
        growth = new_power - tf.pow(accumulator, -self.learning_rate_power)
        linear = read_rows(linear_slot, ids) + (shrunk - growth / learning_rate * rows)
        return [
            write_rows(linear_slot, ids, linear),
            write_rows(variable, ids, self._solve(linear, new_power, learning_rate)),
            write_rows(accumulator_slot, ids, new_accumulator),
        ]

    def _solve(self, linear: tf.Tensor, power: tf.Tensor, learning_rate: tf.Tensor) -> tf.Tensor:
        """The rows that minimise what the slots stand for."""
        l1 = self.l1_regularization_strength
        l2 = self.l2_regularization_strength + self.beta / (2.0 * learning_rate)
        quadratic = power / learning_rate + 2 * l2
        return (tf.clip_by_value(linear, -l1, l1) - linear) / quadratic
