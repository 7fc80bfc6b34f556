"""What the row of a new key begins with: a function of the key and a seed alone, so that any trainer makes the same.

Only integers, and one multiplication and one addition of floats for each value, are computed: those have the same bits
on every processor and at every place in a batch, which functions like a logarithm do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

_STEP = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class InitialRows(Protocol):
    def rows(self, keys: tf.Tensor, width: int) -> tf.Tensor:
        """What the rows of these keys (a vector) begin with, in a graph or eagerly."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantRows:
    """The same value everywhere."""

    value: float = 0.0

    def rows(self, keys: tf.Tensor, width: int) -> tf.Tensor:
        return tf.fill([tf.size(keys), width], tf.constant(self.value, tf.float32))


@dataclass(frozen=True, slots=True)
class UniformRows:
    """Values between two limits, all equally likely: 2**24 of them."""

    low: float
    high: float
    seed: int = 0

    def rows(self, keys: tf.Tensor, width: int) -> tf.Tensor:
        words = random_words(keys, width, seed=self.seed)
        steps = tf.cast(tf.cast(tf.bitwise.right_shift(words, u64(40)), tf.int64), tf.float32)
        return steps * tf.constant((self.high - self.low) / 2**24, tf.float32) + tf.constant(
            self.low, tf.float32
        )


@dataclass(frozen=True, slots=True)
class NormalRows:
    """The sum of twelve uniform numbers of 16 bits: within a few per cent of a normal density, and never beyond 6."""

    mean: float
    deviation: float
    seed: int = 0

    def rows(self, keys: tf.Tensor, width: int) -> tf.Tensor:
        words = tf.reshape(random_words(keys, 3 * width, seed=self.seed), [-1, width, 3, 1])
        shifts = tf.constant([0, 16, 32, 48], tf.uint64)
        parts = tf.bitwise.bitwise_and(tf.bitwise.right_shift(words, shifts), u64(0xFFFF))
        # 12 numbers of 0 to 65,535 are 393,210 on average.
        centred = tf.reduce_sum(tf.cast(parts, tf.int64), axis=[2, 3]) - 393_210
        scale = tf.constant(self.deviation / 2**16, tf.float32)
        return tf.cast(centred, tf.float32) * scale + tf.constant(self.mean, tf.float32)


KeyedRows = ConstantRows | UniformRows | NormalRows


def random_words(keys: tf.Tensor, width: int, *, seed: int) -> tf.Tensor:
    """uint64 [keys, width]: the outputs of a SplitMix64 that a key and the seed begin."""
    start = _mixed(tf.bitcast(keys, tf.uint64) + u64(_STEP * (2 * seed + 1)))
    # From numpy: of a list of numbers beyond 2**63 TensorFlow makes others when it is not in a graph.
    steps = np.array([_STEP * (number + 1) % 2**64 for number in range(width)], np.uint64)
    return _mixed(start[:, tf.newaxis] + steps)


def _mixed(words: tf.Tensor) -> tf.Tensor:
    for shift, factor in zip((30, 27), _MIX, strict=True):
        words = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, u64(shift))) * u64(factor)
    return tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, u64(31)))


def u64(value: int) -> tf.Tensor:
    return tf.constant(np.uint64(value % 2**64))
