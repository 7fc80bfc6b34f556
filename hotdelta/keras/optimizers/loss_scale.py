"""Dynamic loss scaling that looks for overflow in the rows of a gradient, not in a gradient as large as the table."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from hotdelta.keras.optimizers.row_gradients import Gradient


@keras.saving.register_keras_serializable(package="hotdelta")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """keras.optimizers.LossScaleOptimizer, whose step costs the rows it touches; wrap it around a row-wise optimizer.

    The one of Keras, which `compile` wraps around an optimizer by itself under mixed_float16, works too, but makes
    sparse gradients dense to test them.
    """

    def check_finite(self, grads: Sequence[Gradient]) -> tf.Tensor:
        return super().check_finite([g.values if isinstance(g, tf.IndexedSlices) else g for g in grads])
