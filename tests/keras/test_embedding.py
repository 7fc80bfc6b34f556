from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.errors import ConfigurationError
from hotdelta.keras.embedding import Embedding

ROWS = 30
WEIGHTS = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)


@pytest.fixture
def mixed_precision() -> Iterator[None]:
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy("float32")


def pair(**options: Any) -> tuple[Embedding, keras.layers.Embedding]:
    """Our layer and the stock one, with the same weights."""
    layers = Embedding(ROWS, 4, **options), keras.layers.Embedding(ROWS, 4, **options)
    for layer in layers:
        layer.build()
        layer.set_weights([WEIGHTS, *layer.get_weights()[1:]])
    return layers


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from(["int32", "int64", "uint8", "int16", "float32", "float64"]),
    table_dtype=st.sampled_from(
        ["float32", "float16", "bfloat16", "float64", "mixed_float16", "mixed_bfloat16"]
    ),
)
def test_rows_equal_those_of_the_stock_layer(shape: list[int], dtype: str, table_dtype: str) -> None:
    ours, theirs = pair(dtype=table_dtype)
    ids = tf.constant(np.random.default_rng(1).integers(0, ROWS, shape), dtype)
    our_rows, their_rows = ours(ids), theirs(ids)
    assert our_rows.dtype == their_rows.dtype
    assert our_rows.shape == their_rows.shape
    assert our_rows.numpy().tobytes() == their_rows.numpy().tobytes()


def test_ragged_ids_equal_those_of_the_stock_layer() -> None:
    ours, theirs = pair()
    for ids in (
        tf.ragged.constant([[1, 2], [], [3]]),
        tf.ragged.constant([[[1, 2], []], [[3]]], dtype=tf.int64),
    ):
        assert ours(ids).to_list() == theirs(ids).to_list()


def test_sparse_ids_equal_those_of_the_stock_layer() -> None:
    ours, theirs = pair()
    ids = tf.SparseTensor([[0, 1], [2, 0]], tf.constant([7, 9], tf.int64), [3, 2])
    our_rows, their_rows = ours(ids), theirs(ids)
    assert np.array_equal(tf.convert_to_tensor(our_rows).numpy(), tf.convert_to_tensor(their_rows).numpy())


def test_ids_outside_the_table_raise() -> None:
    ours, _ = pair()
    for bad in (ROWS, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            ours(tf.constant([bad]))


def test_zero_is_masked_as_in_the_stock_layer() -> None:
    ours, theirs = pair(mask_zero=True)
    ids = tf.constant([[0, 1], [2, 0]])
    assert np.array_equal(ours.compute_mask(ids).numpy(), theirs.compute_mask(ids).numpy())
    assert ours.supports_masking


def test_arguments_of_the_stock_layer_are_taken_and_kept_in_the_config() -> None:
    options: dict[str, Any] = {
        "embeddings_initializer": "ones",
        "embeddings_regularizer": keras.regularizers.L2(0.1),
        "embeddings_constraint": keras.constraints.MaxNorm(1.0),
        "mask_zero": True,
        "name": "items",
    }
    ours, theirs = Embedding(ROWS, 4, **options), keras.layers.Embedding(ROWS, 4, **options)
    assert ours.get_config() == theirs.get_config()
    copy = keras.layers.deserialize(keras.layers.serialize(ours))
    assert type(copy) is Embedding
    assert copy.get_config() == ours.get_config()
    assert np.array_equal(Embedding(ROWS, 4, weights=WEIGHTS).get_weights()[0], WEIGHTS)


def test_a_functional_model_is_saved_and_loaded(tmp_path: Path) -> None:
    inputs = keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(Embedding(ROWS, 4)(inputs))))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ids = np.array([[1, 2, 3]])
    assert type(loaded.layers[1]) is Embedding
    assert np.array_equal(model.predict(ids, verbose=0), loaded.predict(ids, verbose=0))


def test_weights_of_a_stock_model_load_into_ours(tmp_path: Path) -> None:
    def model(kind: Any) -> keras.Model:
        return keras.Sequential([keras.Input((3,)), kind(ROWS, 4, name="items"), keras.layers.Flatten()])

    theirs, ours = model(keras.layers.Embedding), model(Embedding)
    theirs.save_weights(tmp_path / "a.weights.h5")
    ours.load_weights(tmp_path / "a.weights.h5")
    assert np.array_equal(ours.get_weights()[0], theirs.get_weights()[0])


class Tower(keras.Model):
    """A subclassed model, whose variables do not exist yet when Keras infers its shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.items = Embedding(ROWS, 4)

    def call(self, ids: Any) -> Any:
        return keras.ops.sum(self.items(ids), axis=-1)


def test_a_subclassed_model_is_called_symbolically_and_trained() -> None:
    inputs = keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, Tower()(inputs))
    model.compile("sgd", "mse")
    model.fit(np.array([[1, 2, 3]]), np.ones((1, 3)), verbose=0)
    assert model.output_shape == (None, 3)


@pytest.mark.usefixtures("mixed_precision")
def test_under_mixed_precision_rows_are_cast_and_not_the_table() -> None:
    model = Tower()
    ids = tf.constant([[1, 2]])
    graph = tf.function(model).get_concrete_function(ids).graph
    assert model(ids).dtype == tf.bfloat16
    assert model.items._embeddings.dtype == "float32"
    assert _whole_reads(graph, model.items._embeddings.value) == []


def test_a_call_gathers_from_the_resource() -> None:
    ours, theirs = pair()
    ids = tf.constant([[1, 2]])
    assert _whole_reads(tf.function(ours).get_concrete_function(ids).graph, ours._embeddings.value) == []
    assert _whole_reads(tf.function(theirs).get_concrete_function(ids).graph, theirs._embeddings.value) != []


def test_lora_gathers_rows_of_both_tables_and_equals_the_stock_layer() -> None:
    ours, theirs = pair(lora_rank=2)
    low_rank = [
        np.random.default_rng(2).normal(size=shape).astype(np.float32) for shape in ((ROWS, 2), (2, 4))
    ]
    for layer in (ours, theirs):
        layer.lora_embeddings_a.assign(low_rank[0])
        layer.lora_embeddings_b.assign(low_rank[1])
    ids = tf.constant([[3, 9], [3, 0]])
    np.testing.assert_allclose(ours(ids).numpy(), theirs(ids).numpy(), rtol=1e-6)
    graph = tf.function(ours).get_concrete_function(ids).graph
    assert _whole_reads(graph, ours._embeddings.value) == []
    assert _whole_reads(graph, ours.lora_embeddings_a.value) == []
    assert [weight.name for weight in ours.trainable_weights] == ["lora_embeddings_a", "lora_embeddings_b"]


def test_quantizing_is_refused_with_the_remedy() -> None:
    ours, _ = pair()
    with pytest.raises(ConfigurationError, match=r"keras\.layers\.Embedding"):
        ours.quantize("int8")
    with pytest.raises(ConfigurationError, match=r"keras\.layers\.Embedding"):
        Embedding(ROWS, 4, dtype="int8_from_float32")


def _whole_reads(graph: Any, variable: tf.Variable) -> list[str]:
    handle = graph.capture(variable.handle)
    return [
        op.name for op in graph.get_operations() if op.type == "ReadVariableOp" and op.inputs[0] is handle
    ]


def test_a_large_table_has_the_values_that_keras_gives_it_in_a_third_of_the_memory() -> None:
    """In a process of its own, for what it takes at most: the table, its slot, and slices."""
    program = """
import resource, keras, numpy as np, hotdelta.keras as hk, tensorflow as tf
tf.random.stateless_uniform([8], [1, 2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
layer = hk.Embedding(1_200_000, 16, embeddings_initializer=keras.initializers.RandomUniform(-1, 2, seed=9))
layer.build()
optimizer = hk.Adagrad(0.1)
optimizer.build(layer.trainable_variables)
rows = 2 * 1_200_000 * 16 * 4
taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
assert taken < 1.3 * rows, taken / rows
expected = keras.initializers.RandomUniform(-1, 2, seed=9)((1_200_000, 16), "float32").numpy()
assert np.array_equal(layer.get_weights()[0], expected)
assert layer.embeddings.path == "embedding/embeddings", layer.embeddings.path
assert (optimizer.variables[-1].numpy()[::100_000] == np.float32(0.1)).all()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
