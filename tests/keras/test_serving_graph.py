"""Tracing Keras models for serving, and the graph that the trainer leaves behind: written, read back, called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras
from exporter.whole_table_reads import refuse_whole_table_reads
from hotdelta.chain.schema import Schema
from hotdelta.errors import ConfigurationError, DamagedError, ModelMismatchError
from hotdelta.keras.serving_graph import trace_keras_model
from hotdelta.keras.structure import model_variables
from hotdelta.train.serving_files import load_schema, load_serving_graph, save_serving_graph

layers = keras.layers


def served(model: keras.Model, directory: Path, **options: Any) -> tuple[Mapping[str, Any], Schema]:
    """The signatures of a model as the exporter sees them: from the files alone, filled with the model's values."""
    module, schema = trace_keras_model(model, **options)
    save_serving_graph(directory, module, schema)
    loaded = load_serving_graph(directory, load_schema(directory, schema.digest))
    refuse_whole_table_reads(loaded, schema)
    values = {item.key: item.variable for item in model_variables(model)}
    for spec, variable in zip(schema.variables, loaded.variables, strict=True):
        variable.assign(values[spec.key])
    return loaded.signatures, schema


def two_towers() -> keras.Model:
    inputs = {
        "user": keras.Input((3,), dtype="int64", name="user"),
        "item": keras.Input((), dtype="int32", name="item"),
    }
    user = layers.GlobalAveragePooling1D()(layers.Embedding(50, 4)(inputs["user"]))
    item = layers.Embedding(60, 4)(inputs["item"])
    logit = layers.Dense(1)(layers.Dropout(0.5)(layers.Concatenate()([user, item])))
    return keras.Model(inputs, {"click": layers.Activation("sigmoid")(logit), "logit": logit})


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


def _vocabulary_file(folder: Path) -> str:
    path = folder / "words.txt"
    path.write_text("red\ngreen\n")
    return str(path)


PREPROCESSING: dict[str, Callable[[Path], tuple[keras.Model, Any]]] = {
    "StringLookup": lambda _: (
        _preprocess(layers.StringLookup(vocabulary=["red", "green"]), "string"),
        [["red"]],
    ),
    "StringLookup with a file": lambda folder: (
        _preprocess(layers.StringLookup(vocabulary=_vocabulary_file(folder)), "string"),
        [["green"]],
    ),
    "IntegerLookup": lambda _: (_preprocess(layers.IntegerLookup(vocabulary=[70, 80]), "int64"), [[80]]),
    "Hashing": lambda _: (_preprocess(layers.Hashing(9, salt=3), "string"), [["red"]]),
    "Discretization": lambda _: (_preprocess(layers.Discretization([0.0, 1.0]), "float32"), [[0.5]]),
}


def _preprocess(layer: Any, dtype: str) -> keras.Model:
    word = keras.Input((1,), dtype=dtype, name="word")
    return keras.Model(word, layers.Embedding(10, 3)(layer(word)))


@pytest.mark.parametrize("make", PREPROCESSING.values(), ids=PREPROCESSING.keys())
def test_preprocessing_goes_along_without_the_model(
    tmp_path: Path, make: Callable[[Path], tuple[keras.Model, Any]]
) -> None:
    model, word = make(tmp_path)
    expected = model(tf.constant(word))
    directory = tmp_path / "graph"
    signatures, _ = served(model, directory)
    (tmp_path / "words.txt").unlink(missing_ok=True)
    dtype = model.inputs[0].dtype
    (found,) = signatures["serving_default"](word=tf.constant(word, dtype)).values()
    np.testing.assert_array_equal(found, expected)


def test_another_vocabulary_is_another_schema() -> None:
    def digest(words: list[str]) -> str:
        model = _preprocess(layers.StringLookup(vocabulary=words), "string")
        return trace_keras_model(model)[1].digest

    assert digest(["red", "green"]) == digest(["red", "green"])
    assert digest(["red", "green"]) != digest(["green", "red"])


def test_another_way_to_hash_is_another_schema() -> None:
    def digest(layer: Any) -> str:
        return trace_keras_model(_preprocess(layer, "string"))[1].digest

    assert digest(layers.Hashing(9, salt=3)) == digest(layers.Hashing(9, salt=3))
    assert digest(layers.Hashing(9, salt=3)) != digest(layers.Hashing(9, salt=4))


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


def test_the_graph_does_not_grow_with_the_table(tmp_path: Path) -> None:
    ids = keras.Input((), dtype="int64", name="ids")
    model = keras.Model(ids, layers.Embedding(1_000_000, 16, embeddings_initializer="zeros")(ids))
    module, schema = trace_keras_model(model)
    path = save_serving_graph(tmp_path, module, schema)
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 100_000


def test_a_model_with_the_same_variables_that_computes_something_else_replaces_the_graph(
    tmp_path: Path,
) -> None:
    def dense(activation: str) -> keras.Model:
        numbers = keras.Input((2,), name="numbers")
        kernel = {"kernel_initializer": "ones", "bias_initializer": "zeros"}
        return keras.Model(numbers, layers.Dense(1, activation=activation, name="score", **kernel)(numbers))

    def served(model: keras.Model) -> float:
        module, schema = trace_keras_model(model)
        save_serving_graph(tmp_path, module, schema)
        loaded = load_serving_graph(tmp_path, schema)
        for variable, value in zip(loaded.variables, module.variables, strict=True):
            variable.assign(value)
        return float(
            loaded.signatures["serving_default"](tf.constant([[-1.0, -2.0]]))["score"].numpy().item()
        )

    assert served(dense("linear")) == -3.0
    assert served(dense("relu")) == 0.0
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_or_damaged_graph_says_what_to_do(tmp_path: Path) -> None:
    module, schema = trace_keras_model(two_towers())
    with pytest.raises(ModelMismatchError, match="no serving graph"):
        load_serving_graph(tmp_path, schema)
    with pytest.raises(ModelMismatchError, match="start the trainer again"):
        load_schema(tmp_path, schema.digest)
    path = save_serving_graph(tmp_path, module, schema)
    (path / "saved_model.pb").write_bytes(b"\xff" * 100)
    with pytest.raises(DamagedError, match="start the trainer again"):
        load_serving_graph(tmp_path, schema)
