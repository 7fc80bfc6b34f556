"""Tracing Keras models for serving: named outputs, row gathers, and only what predictions need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras.model.structure import model_variables
from hotdelta.keras.serving.graph import trace_keras_model
from tests.keras.served_models import layers, served, two_towers

IDS = {"user": np.array([[1, 2, 49]], np.int64), "item": np.array([59], np.int32)}


def test_dictionaries_keep_the_names_of_inputs_and_outputs(tmp_path: Path) -> None:
    model = two_towers()
    signatures, schema = served(model, tmp_path)
    found = signatures["serving_default"](**{name: tf.constant(value) for name, value in IDS.items()})
    expected = model(IDS, training=False)
    assert sorted(found) == ["click", "logit"]
    np.testing.assert_allclose(found["logit"], expected["logit"], rtol=1e-6)
    spec = schema.signatures["serving_default"]
    assert {(t.name, t.shape, t.dtype) for t in spec.inputs} == {
        ("user", (None, 3), "int64"),
        ("item", (None,), "int32"),
    }


def test_stock_embeddings_are_tables_and_gather_rows(tmp_path: Path) -> None:
    signatures, schema = served(two_towers(), tmp_path)
    assert len(schema.tables) == 2
    operations = {
        node.op
        for function in signatures["serving_default"].graph.as_graph_def().library.function
        for node in function.node_def
    }
    assert "ResourceGather" in operations
    assert "GatherV2" not in operations


@pytest.mark.parametrize("bad_id", [50, -1])
def test_ids_outside_a_table_raise(tmp_path: Path, bad_id: int) -> None:
    signatures, _ = served(two_towers(), tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError):
        signatures["serving_default"](user=tf.constant([[1, 2, bad_id]], tf.int64), item=tf.constant([1]))


def test_a_model_that_is_built_again_has_the_same_schema() -> None:
    _, first = trace_keras_model(two_towers())
    layers.Dense(3)
    _, second = trace_keras_model(two_towers())
    assert first.digest == second.digest


def test_only_what_predictions_use_is_served() -> None:
    model = two_towers()
    _, schema = trace_keras_model(model)
    all_keys = {item.key for item in model_variables(model)}
    left_out = all_keys - {variable.key for variable in schema.variables}
    assert left_out
    assert all("seed_generator" in key for key in left_out)


def test_functions_of_the_user_are_signatures(tmp_path: Path) -> None:
    model = two_towers()

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64, name="user")])
    def for_first_item(user: tf.Tensor) -> Any:
        return model({"user": user, "item": tf.zeros([tf.shape(user)[0]], tf.int32)}, training=False)["click"]

    signatures, schema = served(
        model, tmp_path, signatures={"serving_default": None, "first": for_first_item}
    )
    assert sorted(schema.signatures) == ["first", "serving_default"]
    found = signatures["first"](user=tf.constant(IDS["user"]))
    expected = model({"user": IDS["user"], "item": np.zeros(1, np.int32)}, training=False)["click"]
    np.testing.assert_allclose(found["output_0"], expected, rtol=1e-6)


def test_a_signature_may_not_have_a_name_that_exports_use() -> None:
    with pytest.raises(ConfigurationError, match="restore_full"):
        trace_keras_model(two_towers(), signatures={"restore_full": None})


def test_a_variable_outside_the_model_is_refused_by_name() -> None:
    outside = tf.Variable([1.0], name="stray")
    function = tf.function(lambda x: x + outside, input_signature=[tf.TensorSpec([1], name="x")])
    with pytest.raises(ConfigurationError, match="stray"):
        trace_keras_model(two_towers(), signatures={"serving_default": function})


def test_output_layers_without_a_name_of_their_own_are_numbered_among_themselves() -> None:
    x = keras.Input((2,), name="x")
    model = keras.Model(x, [layers.Dense(1)(x), layers.Dense(1)(x), layers.Dense(1, name="dense_of_mine")(x)])
    outputs = trace_keras_model(model)[1].signatures["serving_default"].outputs
    assert [output.name for output in outputs] == ["dense", "dense_1", "dense_of_mine"]


def test_batch_statistics_are_served_and_normalisation_is_not_training(tmp_path: Path) -> None:
    inputs = keras.Input((2,), name="x")
    model = keras.Model(
        inputs, layers.BatchNormalization()(layers.Normalization(mean=1.0, variance=4.0)(inputs))
    )
    model.layers[-1].moving_mean.assign([5.0, 6.0])
    signatures, schema = served(model, tmp_path)
    assert any("moving_mean" in variable.key for variable in schema.variables)
    (found,) = signatures["serving_default"](x=tf.constant([[1.0, 2.0]])).values()
    np.testing.assert_allclose(found, model(np.array([[1.0, 2.0]]), training=False), rtol=1e-6)


def test_half_precision_is_traced_as_it_is_trained(tmp_path: Path) -> None:
    ids = keras.Input((2,), dtype="int32", name="ids")
    policy = keras.DTypePolicy("mixed_float16")
    model = keras.Model(ids, layers.Dense(1, dtype=policy)(layers.Embedding(7, 3, dtype=policy)(ids)))
    signatures, schema = served(model, tmp_path)
    assert [table.dtype for table in schema.tables] == ["float32"]
    (found,) = signatures["serving_default"](ids=tf.constant([[1, 6]])).values()
    np.testing.assert_array_equal(found, model(np.array([[1, 6]])))


def test_tracing_leaves_the_embedding_class_as_it_was() -> None:
    call, has_call = layers.Embedding.call, "__call__" in vars(layers.Embedding)
    trace_keras_model(two_towers())
    assert layers.Embedding.call is call
    assert ("__call__" in vars(layers.Embedding)) == has_call


def test_outputs_of_operations_are_served_under_the_name_of_the_operation(tmp_path: Path) -> None:
    user, item = keras.Input((), dtype="int64", name="user"), keras.Input((), dtype="int64", name="item")
    product = layers.Embedding(5, 3)(user) * layers.Embedding(6, 3)(item)
    model = keras.Model([user, item], [keras.ops.sum(product, axis=-1), product + 1.0])
    signatures, _ = served(model, tmp_path)
    ids = [np.array([4]), np.array([5])]
    found = signatures["serving_default"](user=tf.constant(ids[0]), item=tf.constant(ids[1]))
    assert sorted(found) == ["add", "sum"]
    for name, expected in zip(("sum", "add"), model(ids), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_a_function_that_was_called_before_is_traced_again_with_row_gathers(tmp_path: Path) -> None:
    model = two_towers()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="item")])
    def nobody(item: tf.Tensor) -> Any:
        return model({"user": tf.zeros([tf.size(item), 3], tf.int64), "item": item}, training=False)["logit"]

    expected = nobody(tf.constant([7]))
    signatures, _ = served(model, tmp_path, signatures={"serving_default": nobody})
    np.testing.assert_allclose(
        signatures["serving_default"](item=tf.constant([7]))["output_0"], expected, rtol=1e-6
    )


def test_two_inputs_of_one_name_are_refused_with_nothing_but_the_reason() -> None:
    user, item = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
    model = keras.Model(
        {"user": {"id": user}, "item": {"id": item}},
        layers.Embedding(5, 3)(user) + layers.Embedding(6, 3)(item),
    )
    with pytest.raises(ConfigurationError) as refused:
        trace_keras_model(model)
    assert (
        str(refused.value) == "two inputs of a signature have one name: id, id. name the inputs differently"
    )
