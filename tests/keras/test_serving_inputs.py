"""What the inputs of a served model are called and look like, for every kind of Keras model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras
from hotdelta.errors import ConfigurationError
from hotdelta.keras.serving.graph import trace_keras_model
from tests.keras.served_models import layers, served, two_towers


def _sequential(*given: Any) -> keras.Model:
    return keras.Sequential(
        [*given, layers.Embedding(30, 4), layers.Flatten(), layers.Dense(2, name="scores")]
    )


def test_a_sequential_model_keeps_the_name_of_its_input_and_output_layer(tmp_path: Path) -> None:
    model = _sequential(keras.Input((2,), dtype="int32", name="pair"))
    signatures, _ = served(model, tmp_path)
    found = signatures["serving_default"](pair=tf.constant([[1, 2]]))
    np.testing.assert_allclose(found["scores"], model(np.array([[1, 2]])), rtol=1e-6)


def test_ids_of_a_sequential_model_without_input_layer_are_integers(tmp_path: Path) -> None:
    model = _sequential()
    expected = model(np.array([[1, 29]]))
    signatures, schema = served(model, tmp_path)
    assert [(t.name, t.dtype) for t in schema.signatures["serving_default"].inputs] == [("inputs", "int64")]
    np.testing.assert_allclose(
        signatures["serving_default"](inputs=tf.constant([[1, 29]], tf.int64))["scores"], expected, rtol=1e-6
    )


class Ranker(keras.Model):
    """Subclassed, with inputs of both kinds and without get_config."""

    def __init__(self, embedding: Any = layers.Embedding) -> None:
        super().__init__()
        self.items = embedding(40, 4)
        self.head = layers.Dense(1)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        rows = self.items(inputs["item"])
        return self.head(tf.concat([rows, tf.cast(inputs["price"], rows.dtype)], axis=-1))


@pytest.mark.parametrize("embedding", [layers.Embedding, hotdelta.keras.Embedding])
def test_a_subclassed_model_is_served_from_its_first_call(tmp_path: Path, embedding: Any) -> None:
    model = Ranker(embedding)
    inputs = {"item": np.array([3, 39]), "price": np.array([[0.5], [2.0]], np.float32)}
    expected = model(inputs)
    signatures, schema = served(model, tmp_path)
    dtypes = {t.name: t.dtype for t in schema.signatures["serving_default"].inputs}
    assert dtypes == {"item": "int64", "price": "float32"}
    found = signatures["serving_default"](
        item=tf.constant([3, 39], tf.int64), price=tf.constant(inputs["price"])
    )
    np.testing.assert_allclose(found["output_0"], expected, rtol=1e-6)


def test_a_subclassed_model_that_was_never_called_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"never called.*signatures="):
        trace_keras_model(Ranker())


class Named(keras.Model):
    """Its input is text, which nothing that Keras records says."""

    def __init__(self, words: Any) -> None:
        super().__init__()
        self.words = words
        self.rows = layers.Embedding(3, 2)

    def call(self, inputs: Any) -> Any:
        return self.rows(self.words(inputs))


def test_words_of_a_subclassed_model_are_strings(tmp_path: Path) -> None:
    model = Named(layers.StringLookup(vocabulary=["red", "green"]))
    expected = model(tf.constant([["red"], ["blue"]]))
    signatures, _ = served(model, tmp_path)
    found = signatures["serving_default"](inputs=tf.constant([["red"], ["blue"]]))
    np.testing.assert_array_equal(found["output_0"], expected)


def test_input_specs_of_the_user_say_what_keras_does_not_know(tmp_path: Path) -> None:
    model = Named(layers.Hashing(3))
    expected = model(tf.constant([["red"], ["blue"]]))
    with pytest.raises(ConfigurationError, match=r"dtype of input 'inputs' is not known.*signatures="):
        trace_keras_model(model)
    wish = {"serving_default": tf.TensorSpec([None, 1], tf.string, name="colour")}
    signatures, _ = served(model, tmp_path, signatures=wish)
    found = signatures["serving_default"](colour=tf.constant([["red"], ["blue"]]))
    np.testing.assert_array_equal(found["output_0"], expected)


class TwoArguments(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.left_rows, self.right_rows = layers.Embedding(5, 2), layers.Embedding(6, 2)

    def build(self, left_shape: Any, right_shape: Any) -> None:
        self.left_rows.build(left_shape)
        self.right_rows.build(right_shape)

    def call(self, left: Any, right: Any) -> Any:
        return self.left_rows(left) + self.right_rows(right)


def test_several_arguments_of_call_are_several_inputs(tmp_path: Path) -> None:
    model = TwoArguments()
    expected = model(np.array([[4]]), np.array([[5]]))
    signatures, _ = served(model, tmp_path)
    found = signatures["serving_default"](
        left=tf.constant([[4]], tf.int64), right=tf.constant([[5]], tf.int64)
    )
    np.testing.assert_array_equal(found["output_0"], expected)


class OddlyNamed(Ranker):
    """Its own attributes have the names of what Keras keeps in functional models."""

    def __init__(self) -> None:
        super().__init__()
        self.input_names = ["item", "price"]
        self.output_names = ["score"]
        self.outputs = [self.head]


def test_attributes_of_a_subclassed_model_are_not_taken_for_those_of_a_functional_one(tmp_path: Path) -> None:
    model = OddlyNamed()
    expected = model({"item": np.array([3]), "price": np.array([[0.5]], np.float32)})
    signatures, _ = served(model, tmp_path)
    found = signatures["serving_default"](item=tf.constant([3], tf.int64), price=tf.constant([[0.5]]))
    np.testing.assert_allclose(found["output_0"], expected, rtol=1e-6)


@pytest.mark.parametrize("specs", ["item", [3], {"item": "int64"}])
def test_input_specs_that_are_none_are_refused_with_the_remedy(specs: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"says nothing about inputs.*tf\.TensorSpec"):
        trace_keras_model(two_towers(), signatures={"serving_default": specs})


def test_a_ragged_input_is_served_as_rows_of_one_length(tmp_path: Path) -> None:
    words = keras.Input((None,), dtype="int64", name="words", ragged=True)
    model = keras.Model(words, {"row": layers.Embedding(5, 3)(words)})
    signatures, schema = served(model, tmp_path)
    assert [t.shape for t in schema.signatures["serving_default"].inputs] == [(None, None)]
    found = signatures["serving_default"](words=tf.constant([[1, 4]], tf.int64))["row"]
    ragged = model(tf.ragged.constant([[1, 4]], dtype=tf.int64))["row"]
    np.testing.assert_array_equal(found, ragged.to_tensor())


def test_a_sparse_input_is_served_dense(tmp_path: Path) -> None:
    words = keras.Input((6,), name="words", sparse=True)
    model = keras.Model(words, layers.Dense(2, name="score")(words))
    signatures, _ = served(model, tmp_path)
    dense = np.eye(2, 6, dtype=np.float32)
    found = signatures["serving_default"](words=tf.constant(dense))["score"]
    np.testing.assert_allclose(found, model(tf.sparse.from_dense(dense)), rtol=1e-6)
