"""A recommender in a few lines of Keras: two embedding tables whose rows are multiplied."""

from __future__ import annotations

import keras

import hotdelta.keras
from examples.click_stream import NUM_ITEMS, NUM_USERS

DIMENSION = 8
LEARNING_RATE = 15.0


def build_model() -> keras.Model:
    """Inputs `user` and `item`, output `click`: the chance that this user clicks on this item."""
    user = keras.Input((), dtype="int64", name="user")
    item = keras.Input((), dtype="int64", name="item")
    of_user = hotdelta.keras.Embedding(
        NUM_USERS, DIMENSION, embeddings_initializer=_near_zero(1), name="users"
    )(user)
    of_item = hotdelta.keras.Embedding(
        NUM_ITEMS, DIMENSION, embeddings_initializer=_near_zero(2), name="items"
    )(item)
    match = keras.layers.Dot(axes=1, name="match")([of_user, of_item])
    click = keras.layers.Activation("sigmoid", name="click")(match)
    model = keras.Model({"user": user, "item": item}, click, name="clicks")
    model.compile(hotdelta.keras.Adagrad(LEARNING_RATE), "binary_crossentropy")
    return model


def _near_zero(seed: int) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.3, seed=seed)
