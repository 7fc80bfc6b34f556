"""Inference models: only what maps the inputs to the outputs, and nothing that can be trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
import hotdelta.keras as hk
from hotdelta.errors import ConfigurationError
from hotdelta.io.model_state import state_of

USERS, ITEMS = np.array([1, 2]), np.array([3, 4])


def exported_keys(version: Path | str) -> set[str]:
    document = json.loads((Path(version) / "assets.extra/hotdelta.json").read_text())
    return {variable["key"] for variable in document["schema"]["variables"]}


def two_towers() -> keras.Model:
    """Dense layers whose names Keras makes up: in a part of the model they would be counted anew."""
    keras.utils.set_random_seed(1)
    user = keras.Input((), dtype="int64", name="user")
    item = keras.Input((), dtype="int64", name="item")
    users = keras.layers.Dense(3)(hk.Embedding(10, 2, name="users")(user))
    items = keras.layers.Dense(3)(hk.Embedding(20, 2, name="items")(item))
    user_vector = keras.layers.Identity(name="user_vector")(users)
    item_vector = keras.layers.Identity(name="item_vector")(items)
    return keras.Model([user, item], keras.layers.Dot(1, name="score")([user_vector, item_vector]))


class Subclassed(keras.Model):
    """Two outputs that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = hk.Embedding(10, 2), hk.Embedding(20, 3)
        self.score = keras.layers.Dense(1)

    def call(self, inputs: Any) -> dict[str, Any]:
        return {"score": self.score(self.users(inputs["user"])), "vector": self.items(inputs["item"])}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[keras.Model, Path]:
    model = two_towers()
    directory = tmp_path_factory.mktemp("whole")
    hio.save_inference_model(directory, ["user", "item"], model.outputs, model, save_incr_model=True)
    return model, directory


def test_a_whole_model_predicts_as_before(whole: tuple[keras.Model, Path]) -> None:
    model, directory = whole

    program, feed_names, fetch_names = hio.load_inference_model(directory)

    assert (feed_names, fetch_names) == (("item", "user"), ("score",))
    found = program({"user": USERS}, item=ITEMS)["score"]
    np.testing.assert_allclose(found, model([USERS, ITEMS]), rtol=1e-6)


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("tower", ["user", "item"])
def test_a_part_of_a_functional_model_has_only_the_variables_it_needs_under_their_own_keys(
    tmp_path: Path, tower: str, is_named: bool
) -> None:
    model = two_towers()
    layer = model.get_layer(f"{tower}_vector")
    key_of = state_of(model).key_of
    dense = layer.input._keras_history.operation

    version = hio.save_inference_model(
        tmp_path, tower, layer.name if is_named else layer.output, model, save_incr_model=True
    )

    assert exported_keys(version) == {f"{tower}s/embeddings", key_of(dense.kernel), key_of(dense.bias)}
    program, feed_names, fetch_names = hio.load_inference_model(tmp_path)
    assert (feed_names, fetch_names) == ((tower,), (layer.name,))
    part = keras.Model(model.inputs[["user", "item"].index(tower)], layer.output)
    np.testing.assert_allclose(program({tower: USERS})[layer.name], part(USERS), rtol=1e-6)


def test_a_part_of_a_subclassed_model_has_only_the_variables_it_needs(tmp_path: Path) -> None:
    model = Subclassed()
    expected = model({"user": USERS, "item": ITEMS})["vector"]

    version = hio.save_inference_model(tmp_path, ["item"], ["vector"], model, save_incr_model=True)

    assert exported_keys(version) == {"items/embeddings"}
    program, *_ = hio.load_inference_model(tmp_path)
    np.testing.assert_array_equal(program(item=ITEMS)["vector"], expected)


def test_a_function_of_a_module_is_an_inference_model(tmp_path: Path) -> None:
    module = tf.Module()
    module.weights, module.unused = tf.Variable([2.0, 3.0]), tf.Variable(1.0)
    module.predict = tf.function(
        lambda x: {"y": x * module.weights}, input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")]
    )

    version = hio.save_inference_model(tmp_path, ["x"], module.predict, module)

    assert exported_keys(version) == {"weights"}
    program, *_ = hio.load_inference_model(tmp_path)
    np.testing.assert_array_equal(program(x=[[1, 2]])["y"], [[2, 6]])


@pytest.mark.parametrize(
    "feeds, targets, message",
    [
        (["item"], ["score"], "cannot be computed from item alone. name more inputs: user"),
        (["item"], ["nothing"], "no output or layer 'nothing'"),
        (["city"], ["score"], "no input 'city'"),
        (["item"], [], "no target is given"),
    ],
)
def test_what_cannot_be_cut_out_is_refused(
    tmp_path: Path, feeds: list[str], targets: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hio.save_inference_model(tmp_path, feeds, targets, two_towers())
    subclassed = Subclassed()
    subclassed({"user": USERS, "item": ITEMS})
    with pytest.raises(ConfigurationError, match=message.replace(" or layer", "")):
        hio.save_inference_model(tmp_path, feeds, targets, subclassed)


def test_a_loaded_model_cannot_be_trained_by_accident(whole: tuple[keras.Model, Path]) -> None:
    program, *_ = hio.load_inference_model(whole[1])
    before = program(user=USERS, item=ITEMS)["score"]
    weight = tf.Variable(1.0)

    with tf.GradientTape(persistent=True) as tape:
        found = program(user=USERS, item=ITEMS)["score"]
        loss = tf.reduce_sum(found) + weight
    graph = program._session.graph

    assert isinstance(found, np.ndarray)
    assert tape.watched_variables() == (weight,)
    assert not hasattr(program, "variables")
    assert not hasattr(program, "trainable_variables")
    assert not hasattr(program, "fit")
    assert tape.gradient(loss, weight) is not None
    with graph.as_default(), pytest.raises(RuntimeError, match="finalized"):
        tf.gradients(
            graph.get_tensor_by_name(program._outputs["score"]),
            graph.get_tensor_by_name(program._inputs["user"]),
        )
    assert graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES) == []
    np.testing.assert_array_equal(program(user=USERS, item=ITEMS)["score"], before)


def test_other_inputs_than_the_models_are_refused(whole: tuple[keras.Model, Path]) -> None:
    program, *_ = hio.load_inference_model(whole[1])

    with pytest.raises(ConfigurationError, match="the inputs are item, user, and user was given"):
        program(user=USERS)
    for bad in ([1.5], ["a"], None):
        with pytest.raises(ConfigurationError, match=r"input 'user' is of .*, and the model takes int"):
            program(user=bad, item=ITEMS)
    for ragged_or_deep in ([[1], [1, 2]], [[[[1]]]]):
        with pytest.raises(ConfigurationError, match="an input does not fit"):
            program(user=ragged_or_deep, item=ITEMS)


class Flags(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(2.0)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.uint8, "age"), tf.TensorSpec([None], tf.bool, "new")]
    )
    def score(self, age: Any, new: Any) -> dict[str, Any]:
        return {"score": self.weight * tf.where(new, tf.cast(age, tf.float32), 0.0)}


def test_plain_integers_are_given_where_they_fit(tmp_path: Path) -> None:
    module = Flags()
    hio.save_inference_model(tmp_path, ["age", "new"], module.score, module)
    program, *_ = hio.load_inference_model(tmp_path)

    np.testing.assert_array_equal(program(age=[3, 255], new=[0, 1])["score"], [0.0, 510.0])
    for bad in ({"age": [300]}, {"age": np.array([-1])}, {"new": [2]}):
        with pytest.raises(ConfigurationError, match=r"integers that do not fit into (uint8|bool)"):
            program({"age": [1], "new": [True], **bad})
    with pytest.raises(ConfigurationError, match="input 'new' is of float64, and the model takes bool"):
        program(age=[1], new=[1.0])


def test_a_directory_without_an_inference_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no inference model"):
        hio.load_inference_model(tmp_path)
