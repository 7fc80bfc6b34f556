"""Our optimizers beside the Keras ones that they must agree with, and one step of each on the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hotdelta.keras.optimizers.adagrad import Adagrad
from hotdelta.keras.optimizers.adam import Adam, AdamW
from hotdelta.keras.optimizers.ftrl import Ftrl
from hotdelta.keras.optimizers.sgd import SGD

Options = dict[str, Any]
Optimizer = Callable[..., Any]
Pair = tuple[Optimizer, Options]

ROWS = 50

# Adagrad and SGD leave rows without a gradient alone in Keras too.
EQUAL_EVERYWHERE: list[Pair] = [(SGD, {}), (Adagrad, {})]
EQUAL_ON_TOUCHED_ROWS: list[Pair] = [
    (SGD, {"momentum": 0.9}),
    (SGD, {"momentum": 0.9, "nesterov": True}),
    (Adam, {}),
    (Adam, {"amsgrad": True}),
    (AdamW, {"weight_decay": 0.5}),
    (Ftrl, {}),
    (
        Ftrl,
        {
            "learning_rate_power": -0.4,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.02,
            "l2_shrinkage_regularization_strength": 0.03,
            "beta": 0.1,
        },
    ),
]
ALL = EQUAL_EVERYWHERE + EQUAL_ON_TOUCHED_ROWS


def stock(ours: Optimizer) -> Optimizer:
    """The Keras class that one of ours stands in for."""
    found: Optimizer = getattr(keras.optimizers, ours.__name__)
    return found


def sparse_gradient(ids: Sequence[int], variable: tf.Variable, seed: int = 0) -> tf.IndexedSlices:
    shape = (len(ids), *variable.shape[1:])
    values = tf.cast(np.random.default_rng(seed).normal(size=shape), variable.dtype)
    return tf.IndexedSlices(values, tf.constant(ids, tf.int64), tf.constant(list(variable.shape), tf.int64))


def table(shape: Sequence[int] = (ROWS, 16), dtype: Any = tf.float32) -> tf.Variable:
    return tf.Variable(tf.cast(np.random.default_rng(7).normal(size=shape), dtype), name="table")


def bits(value: Any) -> bytes:
    """The bit patterns of a variable, so that -0.0 and NaN compare as what they are."""
    raw: bytes = np.asarray(value).tobytes()
    return raw
