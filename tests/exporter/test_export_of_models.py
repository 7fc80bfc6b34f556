"""Exports of models in memory, and of modules of custom loops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from exporter import export_saved_model
from exporter.sources import source_of
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.verification import directory_of
from hotdelta.train import DeltaWriter
from tests.exporter.trained_run import Trained, make_model, metadata_of, schema_of


def test_a_keras_model_in_memory_takes_the_chain_of_its_trainer(trained: Trained, tmp_path: Path) -> None:
    path = export_saved_model(make_model(), tmp_path, save_incr_model=True)
    assert metadata_of(path)["position"] is None
    loaded = tf.saved_model.load(str(path))
    for manifest in trained.manifests[:1]:
        loaded.signatures["restore_full"](prefix=tf.constant([str(trained.run_dir / manifest.prefix)]))
    for manifest in trained.manifests:
        if manifest.kind is Kind.DELTA:
            prefix = directory_of(trained.run_dir, Kind.DELTA) / manifest.prefix
            loaded.signatures["restore_incremental"](prefix=tf.constant([str(prefix)]))
    found = [variable.numpy().tobytes() for variable in loaded.hotdelta_variables]
    assert found == list(trained.values(trained.newest.position, schema_of(path)).values())


def test_the_schema_of_a_model_in_memory_is_that_of_its_trainer(trained: Trained, tmp_path: Path) -> None:
    path = export_saved_model(make_model(), tmp_path)
    assert metadata_of(path)["schema_digest"] == trained.newest.schema


class OddTables(tf.Module):
    """Tables of rank 1 and 3, and dtypes that numpy does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars = tf.Variable(tf.range(9, dtype=tf.float64))
        self.matrices = tf.Variable(tf.cast(tf.reshape(tf.range(60), [10, 2, 3]), tf.bfloat16))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def look_up(self, ids: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {
            "scalar": tf.gather(self.scalars, ids),
            "matrix": tf.cast(tf.gather(self.matrices, ids), tf.float32),
        }


def test_tables_of_any_rank_and_float_dtype_are_exported(tmp_path: Path) -> None:
    module = OddTables()
    path = export_saved_model(
        module,
        tmp_path,
        save_incr_model=True,
        signatures={"serving_default": module.look_up},
        tables=["scalars", "matrices"],
    )
    found = tf.saved_model.load(str(path)).signatures["serving_default"](ids=tf.constant([8], tf.int64))
    assert found["scalar"].numpy() == [8.0]
    assert found["matrix"].numpy().ravel().tolist() == [48.0, 49.0, 50.0, 51.0, 52.0, 53.0]


class Words(tf.Module):
    """A module of a custom loop that looks words up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable(tf.reshape(tf.range(6.0), [3, 2]))
        words = tf.lookup.KeyValueTensorInitializer(["red", "green"], tf.constant([1, 2], tf.int64))
        self.words = tf.lookup.StaticHashTable(words, default_value=0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def look_up(self, word: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"row": tf.gather(self.rows, self.words.lookup(word))}


def test_lookup_tables_of_a_custom_loop_go_along(tmp_path: Path) -> None:
    module = Words()
    writer = DeltaWriter(
        tmp_path / "run", module, tables=["rows"], signatures={"serving_default": module.look_up}
    )
    writer.close()
    path = export_saved_model(tmp_path / "run", tmp_path / "export", save_incr_model=True)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definition = tf.compat.v1.saved_model.load(session, ["serve"], str(path)).signature_def[
            "serving_default"
        ]
        found = session.run(
            definition.outputs["row"].name, {definition.inputs["word"].name: ["green", "blue"]}
        )
    assert found.tolist() == [[4.0, 5.0], [0.0, 1.0]]


class Noisy(tf.Module):
    """Adds noise of its own seed to what it looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.zeros([4, 2]))
        self.seed = keras.random.SeedGenerator(1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def predict(self, ids: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"value": tf.gather(self.weight, ids) + keras.random.normal([2], seed=self.seed)}


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_seed_generator_and_mirrored_variables_of_a_module_are_its_own(is_mirrored: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if is_mirrored else tf.distribute.get_strategy()
    with strategy.scope():
        module = Noisy()
    source = source_of(module, signatures={"serving_default": module.predict}, tables=["weight"])
    assert [variable.key for variable in source.schema.variables] == ["seed/state", "weight"]


class LargeDense(tf.Module):
    """A variable that is no table and so large that staging must not copy it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.zeros([4, 2]))
        self.large = tf.Variable(tf.zeros([600, 500]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def look_up(self, ids: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"row": tf.gather(self.table, ids), "sum": tf.reduce_sum(self.large)}


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_large_dense_variable_is_set_when_it_changed_and_kept_when_not(
    tmp_path: Path, is_changed: bool
) -> None:
    module = LargeDense()
    path = export_saved_model(
        module,
        tmp_path,
        save_incr_model=True,
        signatures={"serving_default": module.look_up},
        tables=["table"],
    )
    loaded = tf.saved_model.load(str(path))
    parts = {
        "table_ids": tf.constant([3], tf.int64),
        "table_rows": tf.constant([[1.0, 2.0]]),
        "large_value": tf.ones([int(is_changed), 600, 500]),
        "identity": tf.constant([1, 1, 5, 5, 0, 0, 0, 0], tf.int64),
        "step": tf.constant(9, tf.int64),
    }
    loaded.signatures["stage_rows"](**parts)
    loaded.signatures["apply_staged"]()
    found = loaded.signatures["serving_default"](ids=tf.constant([3], tf.int64))
    assert found["row"].numpy().tolist() == [[1.0, 2.0]]
    assert found["sum"].numpy() == (300_000 if is_changed else 0)
