"""Lazy Adam and AdamW, whose step costs the rows it touches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hotdelta.keras.optimizers.row_gradients import Gradient, RowGradient
from hotdelta.keras.optimizers.row_wise import RowWise, read_rows, resource, write_rows
from hotdelta.keras_internals import LeavesDecayToStep, Slot, is_decayed, slot_of


@keras.saving.register_keras_serializable(package="hotdelta")
class Adam(RowWise, keras.optimizers.Adam):
    """keras.optimizers.Adam, row-wise and therefore lazy.

    The moments of a row decay, and move the row, only in the steps that touch it, where Keras moves every row in
    every step. The bias correction follows the optimizer's step, as in Keras. A row touched in every step goes
    exactly where Keras takes it.
    """

    def update_rows(
        self, gradient: RowGradient, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> list[tf.Operation]:
        ids, grad = gradient.indices, gradient.values
        momentum_slot, velocity_slot = (
            slot_of(self, slot, variable) for slot in (Slot.MOMENTUM, Slot.VELOCITY)
        )

        old_momentum, old_velocity = read_rows(momentum_slot, ids), read_rows(velocity_slot, ids)
        momentum = old_momentum + (grad - old_momentum) * (1 - self.beta_1)
        velocity = old_velocity + (tf.square(grad) - old_velocity) * (1 - self.beta_2)
        written = [write_rows(momentum_slot, ids, momentum), write_rows(velocity_slot, ids, velocity)]
        if self.amsgrad:
            largest_slot = slot_of(self, Slot.LARGEST_VELOCITY, variable)
            velocity = tf.maximum(read_rows(largest_slot, ids), velocity)
            written.append(write_rows(largest_slot, ids, velocity))

        step = momentum * self._bias_corrected(learning_rate) / (tf.sqrt(velocity) + self.epsilon)
        rows = self._decayed(read_rows(variable, ids), variable, learning_rate) - step
        return [*written, write_rows(variable, ids, rows)]

    def _decayed(self, values: Any, variable: tf.Variable, learning_rate: tf.Tensor) -> Any:
        """What a step starts from. Where this class is told to decay weights, Keras has done so before."""
        return values

    def _bias_corrected(self, learning_rate: tf.Tensor) -> tf.Tensor:
        dtype = learning_rate.dtype
        step = tf.cast(self.iterations + 1, dtype)
        beta_1_power = tf.pow(tf.cast(self.beta_1, dtype), step)
        beta_2_power = tf.pow(tf.cast(self.beta_2, dtype), step)
        return learning_rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)


@keras.saving.register_keras_serializable(package="hotdelta")
class AdamW(LeavesDecayToStep, Adam, keras.optimizers.AdamW):
    """keras.optimizers.AdamW, row-wise and therefore lazy, its decay of weights too.

    A row decays only in the steps that touch it, where Keras decays every row in every step; variables with a dense
    gradient are those of Keras. A row touched in every step goes exactly where Keras takes it.
    """

    def update_step(self, gradient: Gradient, variable: Any, learning_rate: Any) -> None:
        weights = resource(variable)
        if not isinstance(gradient, tf.IndexedSlices) and is_decayed(self, weights):
            weights.assign(self._decayed(weights, weights, tf.cast(learning_rate, weights.dtype)))
        super().update_step(gradient, variable, learning_rate)

    def _decayed(self, values: Any, variable: tf.Variable, learning_rate: tf.Tensor) -> Any:
        if not is_decayed(self, variable):
            return values
        return values - values * tf.cast(self.weight_decay, variable.dtype) * learning_rate
