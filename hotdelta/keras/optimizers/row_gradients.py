"""The gradient of a table as rows: unique ids, one row of gradient each, never the shape of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Gradient = Any


class RowGradient(tf.IndexedSlices):
    """An IndexedSlices whose ids are unique, and which a scalar can divide without making it dense.

    Keras divides gradients by the loss scale, and adds them to its accumulators: the first keeps the rows, the second
    makes the gradient dense, because an accumulator is as large as its table.
    """

    def __truediv__(self, scale: Any) -> RowGradient:
        return self.with_values(self.values / tf.cast(scale, self.values.dtype))

    def __add__(self, dense: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self) + dense

    __radd__ = __add__

    def with_values(self, values: tf.Tensor) -> RowGradient:
        return RowGradient(values, self.indices, self.dense_shape)


def sum_duplicates(gradient: tf.IndexedSlices) -> RowGradient:
    """The same gradient with the rows of equal ids summed: a row is updated once a step, by its whole gradient."""
    if isinstance(gradient, RowGradient):
        return gradient
    ids, positions = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(ids))
    return RowGradient(rows, ids, gradient.dense_shape)


def sum_duplicates_in_each(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Every sparse gradient as a RowGradient; dense ones, and the None of a variable without one, as they are."""
    return [sum_duplicates(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def map_values(
    function: Callable[[list[Gradient]], Sequence[Gradient]], gradients: Sequence[Gradient]
) -> list[Gradient]:
    """Applies `function`, which sees tensors only, to the values of the gradients.

    What it does must be the same for a dense gradient and for its rows that are not zero: norms and clipping are.
    """
    rows = sum_duplicates_in_each(gradients)
    values = function([g.values if isinstance(g, RowGradient) else g for g in rows])
    return [
        g.with_values(value) if isinstance(g, RowGradient) else value
        for g, value in zip(rows, values, strict=True)
    ]
