"""The layer without a fixed vocabulary: what it looks up, what it learns, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io
import hotdelta.keras as hk
from exporter import export_saved_model
from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.initial_rows import UniformRows

BIG = [0, -1, 2**63 - 1, -(2**63), 5, 2**40]


def layer(**options: Any) -> hk.DynamicEmbedding:
    return hk.DynamicEmbedding(4, **{"max_rows": 100, **options})


def first_rows(keys: Any) -> Any:
    return UniformRows(-0.05, 0.05).rows(tf.constant(keys, tf.int64), 4).numpy()


def test_every_int64_is_a_key() -> None:
    embedding = layer()
    rows = embedding(tf.constant([BIG]), training=True)
    assert rows.shape == (1, 6, 4)
    assert np.array_equal(rows[0], first_rows(BIG))
    keys, held = embedding.items()
    assert keys.tolist() == sorted(BIG)
    assert np.array_equal(held, first_rows(sorted(BIG)))


def test_only_training_makes_keys() -> None:
    embedding = layer()
    assert not embedding(tf.constant([1, 2])).numpy().any()
    embedding(tf.constant([1, 1, 2]), training=True)
    embedding(tf.constant([3]), training=False)
    assert embedding.items()[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    "default, expected",
    [("zeros", [0.0] * 4), ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]), ("initializer", None)],
)
def test_unknown_keys_read_the_default(default: Any, expected: Any) -> None:
    embedding = layer(default=default)
    embedding(tf.constant([7]), training=True)
    found = embedding(tf.constant([9, 7, 9])).numpy()
    expected = first_rows([9])[0].tolist() if expected is None else expected
    assert found[0].tolist() == found[2].tolist() == expected
    assert np.array_equal(found[1], first_rows([7])[0])


def test_texts_are_keys_by_their_hash() -> None:
    embedding = layer()
    rows = embedding(tf.constant(["a", "b", "a"]), training=True).numpy()
    assert np.array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    digest = tf.raw_ops.Fingerprint(data=tf.constant([["a"]]), method="farmhash64")
    assert int(tf.bitcast(digest, tf.int64)[0]) in embedding.items()[0]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_combiners_are_those_of_tensorflow(combiner: str, is_weighted: bool) -> None:
    embedding = layer(combiner=combiner)
    ids = tf.ragged.constant([[1, 2, 3], [], [2, 2]], dtype=tf.int64)
    weights = ids.with_flat_values(tf.constant([0.5, 1.0, 2.0, 3.0, 0.25])) if is_weighted else None
    of_ragged = embedding(ids, weights, training=True).numpy()
    sparse = (ids.to_sparse(), None if weights is None else weights.to_sparse())
    table = tf.constant(first_rows([1, 2, 3]))
    one_based = tf.SparseTensor(sparse[0].indices, sparse[0].values - 1, sparse[0].dense_shape)
    expected = tf.nn.embedding_lookup_sparse(table, one_based, sparse[1], combiner=combiner)
    np.testing.assert_allclose(of_ragged[[0, 2]], expected.numpy()[[0, 2]], rtol=1e-6)
    assert not of_ragged[1].any()
    np.testing.assert_array_equal(embedding(*sparse).numpy(), of_ragged)
    dense = embedding(
        tf.constant([[1, 2, 3]]), None if weights is None else tf.constant([[0.5, 1.0, 2.0]])
    ).numpy()
    np.testing.assert_allclose(dense[0], of_ragged[0], rtol=1e-6)


def test_a_ragged_tensor_stays_one_without_a_combiner() -> None:
    ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    found = layer()(ids, training=True)
    assert found.to_list() == ids.with_flat_values(tf.constant(first_rows([1, 2, 3]))).to_list()


def test_deeper_ragged_tensors_are_combined_along_their_last_axis() -> None:
    ids = tf.ragged.constant([[[1, 2], []], [[3]]], dtype=tf.int64)
    found = layer(combiner="sum")(ids, training=True)
    one, two, three = first_rows([1, 2, 3])
    np.testing.assert_allclose(found[0].numpy(), [one + two, np.zeros(4)])
    np.testing.assert_allclose(found[1].numpy(), [three])


def model(optimizer: Any, **options: Any) -> keras.Model:
    keys = keras.Input((3,), dtype="int64", name="keys")
    embedding = layer(name="users", **options)
    made = keras.Model(
        keys, keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(embedding(keys)))
    )
    made.compile(optimizer, "mse")
    return made


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: hk.SGD(0.1),
    "momentum": lambda: hk.SGD(0.1, momentum=0.9),
    "Adagrad": lambda: hk.Adagrad(0.1),
    "Adam": lambda: hk.Adam(0.01),
    "amsgrad": lambda: hk.Adam(0.01, amsgrad=True),
    "AdamW": lambda: hk.AdamW(0.01, weight_decay=0.1),
    "Ftrl": lambda: hk.Ftrl(0.1),
    "loss scaled": lambda: keras.optimizers.LossScaleOptimizer(hk.Adagrad(0.1)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_learns_exactly_what_a_fixed_table_learns(name: str) -> None:
    """A table with the same first rows, looked up by the place of the key in a list: every row ends with equal bits."""
    random = np.random.default_rng(3)
    vocabulary = random.integers(-(2**63), 2**63 - 1, 30)
    ids, targets = random.integers(0, 30, (40, 8, 3)), random.random((40, 8, 1), np.float32)
    dynamic = model(OPTIMIZERS[name]())
    fixed_input = keras.Input((3,), dtype="int64")
    table = hk.Embedding(30, 4)
    out = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(table(fixed_input)))
    fixed = keras.Model(fixed_input, out)
    fixed.compile(OPTIMIZERS[name](), "mse")
    table.set_weights([first_rows(vocabulary)])
    for some, wanted in zip(ids, targets, strict=True):
        dynamic.train_on_batch(vocabulary[some], wanted)
        fixed.train_on_batch(some, wanted)
    keys, rows = dynamic.get_layer("users").items()
    order = np.argsort(vocabulary)
    assert keys.tolist() == vocabulary[order].tolist()
    assert np.array_equal(rows, table.get_weights()[0][order])


def test_a_full_table_trains_no_default() -> None:
    made = model(hk.AdamW(0.1, weight_decay=0.5), max_rows=2, default=[1.0, 1.0, 1.0, 1.0])
    made.train_on_batch(np.array([[1, 2, 3]]), np.array([[5.0]], np.float32))
    made.train_on_batch(np.array([[1, 4, 3]]), np.array([[5.0]], np.float32))
    embedding = made.get_layer("users")
    assert embedding.items()[0].tolist() == [1, 2]
    assert embedding(tf.constant([3, 4])).numpy().tolist() == [[1.0] * 4] * 2


def test_moving_in_and_out() -> None:
    embedding, rows = layer(), np.random.default_rng(0).random((50, 4), np.float32)
    keys = np.random.default_rng(1).permutation(50) * 2**33
    embedding.assign(keys, rows)
    found, held = embedding.items()
    order = np.argsort(keys)
    assert np.array_equal(found, keys[order])
    assert np.array_equal(held, rows[order])
    assert np.array_equal(embedding(tf.constant(keys)).numpy(), rows)
    embedding(tf.constant([3]), training=True)
    assert len(embedding.items()[0]) == 51


@pytest.mark.parametrize(
    "keys, rows, message",
    [
        ([1, 1], np.zeros((2, 4)), "different whole numbers"),
        ([1.5], np.zeros((1, 4)), "different whole numbers"),
        ([1], np.zeros((2, 4)), "a row for each key"),
        (range(101), np.zeros((101, 4)), "raise max_rows"),
    ],
)
def test_what_cannot_move_in_changes_nothing(keys: Any, rows: Any, message: str) -> None:
    embedding = layer()
    embedding(tf.constant([5]), training=True)
    with pytest.raises(ConfigurationError, match=message):
        embedding.assign(list(keys), rows)
    assert embedding.items()[0].tolist() == [5]


def test_weights_are_saved_by_keras_too(tmp_path: Path) -> None:
    made = model(hk.Adagrad(0.1))
    made.train_on_batch(np.array([[1, 2, 3]]), np.array([[5.0]], np.float32))
    made.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(again.get_layer("users").items(), made.get_layer("users").items(), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(
        again.predict(np.array([[1, 2, 9]]), verbose=0), made.predict(np.array([[1, 2, 9]]), verbose=0)
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_rows": 0}, "max_rows"),
        ({"max_rows": 2.5}, "max_rows"),
        ({"combiner": "max"}, "combiner"),
        ({"default": "ones"}, "default"),
        ({"default": [1.0]}, "4 numbers"),
        ({"initializer": "orthogonal"}, "from its key alone"),
        ({"seed": "x"}, "seed"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_wrong_arguments(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        layer(**options)


def test_wrong_inputs() -> None:
    with pytest.raises(ConfigurationError, match="no combiner"):
        layer()(tf.constant([[1]]), tf.constant([[1.0]]))
    with pytest.raises(ConfigurationError, match="sparse"):
        layer()(tf.sparse.from_dense(tf.constant([[1]], tf.int64)))
    with pytest.raises(ConfigurationError, match="float32"):
        layer()(tf.constant([1.0]), training=True)


@pytest.mark.parametrize("options", [{"use_ema": True}, {"gradient_accumulation_steps": 2}])
def test_options_that_write_every_row_are_refused(options: Any) -> None:
    made = model(hk.Adagrad(0.1, **options))
    with pytest.raises(ConfigurationError, match="no fixed vocabulary"):
        made.train_on_batch(np.array([[1, 2, 3]]), np.array([[5.0]], np.float32))


def test_stock_optimizers_are_refused_by_the_callback(tmp_path: Path) -> None:
    made = model(keras.optimizers.Adagrad(0.1))
    with pytest.raises(ConfigurationError, match="no fixed vocabulary"):
        made.fit(
            np.array([[1, 2, 3]]), np.array([[5.0]]), verbose=0, callbacks=[hk.DeltaCheckpoint(tmp_path)]
        )


def test_it_is_not_set_as_a_whole() -> None:
    made = model(hk.Adagrad(0.1))
    with pytest.raises(ConfigurationError, match="assign\\(keys, rows\\)"):
        made.get_layer("users").rows.assign(np.zeros((101, 4), np.float32))


def test_io_refuses_it_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'users/rows' has no fixed vocabulary"):
        hotdelta.io.save_persistables(model(hk.Adagrad(0.1)), tmp_path)


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_a_model_without_declared_inputs_is_served(tmp_path: Path, kind: str) -> None:
    class Ranker(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.score = layer(combiner="mean"), keras.layers.Dense(1)

        def call(self, keys: Any) -> Any:
            return self.score(self.users(keys))

    ranker = Ranker()
    ranker.compile(hk.Adagrad(0.1), "mse")
    keys = tf.constant([[1, 2], [3, 2**60]], tf.int64)
    keys = tf.strings.as_string(keys) if kind == "string" else keys
    ranker.fit(keys, np.zeros((2, 1)), verbose=0, callbacks=[hk.DeltaCheckpoint(tmp_path / "run")])
    path = export_saved_model(tmp_path / "run", tmp_path / "export", save_incr_model=True)
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    (spec,) = ask.structured_input_signature[1].values()
    assert spec.dtype.name == kind
    (answer,) = ask(keys).values()
    np.testing.assert_allclose(answer, ranker(keys), rtol=1e-6)
