"""Models that look up what they are given before they look up rows: of words, and of numbers."""

from __future__ import annotations

from typing import Any

import keras

import hotdelta.keras as hk

ROWS = 6


def word_model(
    vocabulary: list[str] | None, *, seed: int = 1, name: str = "words", **options: Any
) -> keras.Model:
    """Three words make one score."""
    words = keras.Input((3,), dtype="string", name="word")
    ids = keras.layers.StringLookup(vocabulary=vocabulary, name=name, **options)(words)
    return _score(words, ids, seed)


def number_model(layer: Any) -> keras.Model:
    """`layer` makes ids of three numbers."""
    numbers = keras.Input((3,), dtype="int64", name="number")
    return _score(numbers, layer(numbers), 1)


def _score(inputs: Any, ids: Any, seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    rows = hk.Embedding(ROWS, 2, name="colours")(ids)
    model = keras.Model(inputs, keras.layers.Dense(1, name="score")(keras.layers.Flatten()(rows)))
    model.compile(hk.Adagrad(0.1), "mse")
    return model
