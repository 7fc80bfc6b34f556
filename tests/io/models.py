"""What the tests of io share: a model with every class of variable, and what it holds, bit for bit."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import hotdelta.keras as hk
from hotdelta.io.model_state import state_of
from tests.keras.small_models import ROWS

Bits = dict[str, bytes]


def every_class(
    optimizer: Any = None, *, seed: int = 1, units: int = 1, is_compiled: bool = True
) -> keras.Model:
    """A table, dense layers, moving averages, a seed that moves, slots, a step and metrics."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((3,), dtype="int64", name="ids")
    hidden = keras.layers.Flatten()(hk.Embedding(ROWS, 4, name="items")(ids))
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    hidden = keras.layers.Dropout(0.1, name="drop")(hidden)
    model = keras.Model(ids, keras.layers.Dense(units, name="score")(hidden))
    if is_compiled:
        model.compile(optimizer or hk.Adam(0.1), "mse")
    return model


def bits(model: Any) -> Bits:
    """Every persistable variable of a model, now."""
    return {
        held.key: np.asarray(held.read()).tobytes()
        for held in state_of(model).variables
        if held.info.is_persistable
    }


def different(one: Bits, other: Bits) -> set[str]:
    assert one.keys() == other.keys()
    return {key for key in one if one[key] != other[key]}
