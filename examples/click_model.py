"""A recommender in a few lines of Keras: two tables without a fixed vocabulary whose rows are multiplied."""

from __future__ import annotations

import keras

import hotdelta.keras
from examples.click_stream import FORGET_SECONDS
from hotdelta.train import UntouchedSeconds

DIMENSION = 8
MAX_USERS = 10_000_000
MAX_ITEMS = 1_000_000
LEARNING_RATE = 15.0


def build_model() -> keras.Model:
    """Inputs `user` and `item`, output `click`: the chance that this user clicks on this item."""
    user = keras.Input((), dtype="int64", name="user")
    item = keras.Input((), dtype="int64", name="item")
    users = _table("users", MAX_USERS, seed=1)
    items = _table("items", MAX_ITEMS, seed=2)
    match = keras.layers.Dot(axes=1, name="match")([users(user), items(item)])
    click = keras.layers.Activation("sigmoid", name="click")(match)
    model = keras.Model({"user": user, "item": item}, click, name="clicks")
    model.compile(hotdelta.keras.Adagrad(LEARNING_RATE), "binary_crossentropy")
    return model


def _table(name: str, max_rows: int, *, seed: int) -> hotdelta.keras.DynamicEmbedding:
    return hotdelta.keras.DynamicEmbedding(
        DIMENSION,
        max_rows=max_rows,
        initializer=keras.initializers.RandomNormal(stddev=0.3, seed=seed),
        eviction=UntouchedSeconds(FORGET_SECONDS),
        name=name,
    )
