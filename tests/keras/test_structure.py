"""Keys of variables: the same when the model is built again, and different for what is different."""

from __future__ import annotations

from typing import Any

import keras
import pytest

import hotdelta.keras as hk
from hotdelta.errors import ConfigurationError
from hotdelta.keras.model.structure import model_variables


def keys(model: keras.Model) -> list[str]:
    return [item.key for item in model_variables(model)]


def functional() -> keras.Model:
    """Nothing has a name that a user gave."""
    ids = keras.Input((3,), dtype="int64")
    rows = [hk.Embedding(5, 2)(ids), hk.Embedding(5, 2)(ids)]
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.1)(keras.layers.Dense(2)(hidden)))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def tower(name: str | None = None) -> keras.Model:
    layers = [keras.Input((3,), dtype="int64"), hk.Embedding(5, 2, name="emb"), keras.layers.Flatten()]
    return keras.Sequential(layers, name=name)


def two_towers(*names: str | None) -> keras.Model:
    ids = keras.Input((3,), dtype="int64")
    return keras.Model(ids, keras.layers.Dot(1)([tower(name)(ids) for name in names]))


class Subclassed(keras.Model):
    """Layers in attributes, lists, dictionaries, lists of lists, and inside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.user = hk.Embedding(5, 2)
        self.fields = [hk.Embedding(5, 2), hk.Embedding(5, 2)]
        self.by_name = {"a": keras.layers.Dense(2), "b": keras.layers.Dense(2)}
        self.nested = [[keras.layers.Dense(2)], [keras.layers.Dense(2)]]
        self.tower = tower()
        self.scale = self.add_weight(shape=(), name="scale")

    def call(self, ids: Any) -> Any:
        total = self.user(ids) + sum(layer(ids) for layer in self.fields)
        for layer in (*self.by_name.values(), *(inner for outer in self.nested for inner in outer)):
            total = layer(total)
        return keras.ops.sum(total, axis=(1, 2)) * self.scale + keras.ops.sum(self.tower(ids), axis=1)


def subclassed() -> keras.Model:
    model = Subclassed()
    model(keras.ops.zeros((1, 3), "int64"))
    return model


@pytest.mark.parametrize(
    "build", [functional, subclassed, lambda: two_towers("user", "item"), lambda: two_towers(None, None)]
)
def test_a_model_that_is_built_again_has_the_same_keys(build: Any) -> None:
    first = keys(build())
    keras.layers.Dense(3)
    assert keys(build()) == first
    assert len(set(first)) == len(first)


def test_made_up_names_become_the_class_and_its_place() -> None:
    found = keys(functional())
    assert found[:2] == ["embedding/embeddings", "embedding_1/embeddings"]
    assert {"dense/kernel", "dense_1/kernel", "batch_normalization/moving_mean"} < set(found)
    assert "dropout/seed_generator_0" in found


def test_two_towers_that_hold_equal_names_are_told_apart() -> None:
    assert keys(two_towers("user", "item")) == ["user/emb/embeddings", "item/emb/embeddings"]
    assert keys(two_towers(None, None)) == ["sequential/emb/embeddings", "sequential_1/emb/embeddings"]


def test_a_subclassed_model_is_keyed_by_its_attributes() -> None:
    found = set(keys(subclassed()))
    assert {
        "scale",
        "user/embeddings",
        "fields/0/embeddings",
        "fields/1/embeddings",
        "by_name/a/kernel",
        "by_name/b/bias",
        "tower/emb/embeddings",
    } < found


def test_a_layer_that_is_shared_has_one_key() -> None:
    ids = keras.Input((3,), dtype="int64")
    shared = hk.Embedding(5, 2, name="shared")
    assert keys(keras.Model(ids, keras.layers.Dot(1)([shared(ids), shared(ids)]))) == ["shared/embeddings"]


def test_two_variables_of_one_key_are_refused() -> None:
    class Twice(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.groups = {"x": [hk.Embedding(5, 2, name="same")], "y": [hk.Embedding(5, 2, name="same")]}

        def call(self, ids: Any) -> Any:
            return self.groups["x"][0](ids) + self.groups["y"][0](ids)

    model = Twice()
    model(keras.ops.zeros((1, 3), "int64"))
    with pytest.raises(ConfigurationError, match="two variables have the key 'same/embeddings'"):
        keys(model)
