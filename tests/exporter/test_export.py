"""Exports from a checkpoint directory that a real trainer wrote, and from models in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras
from exporter import export_saved_model
from exporter.fingerprint import fingerprint_array
from exporter.verification import Expected, verify_export
from hotdelta import signatures as contract
from hotdelta.chain.identity import decode_identity
from hotdelta.chain.manifest import Kind, Manifest
from hotdelta.chain.position import Position
from hotdelta.chain.scan import Scanner
from hotdelta.chain.schema import Schema
from hotdelta.chain.verification import directory_of
from hotdelta.errors import ChainError, ConfigurationError, DamagedError, ModelMismatchError
from hotdelta.keras.structure import model_variables
from hotdelta.train import DeltaWriter
from tests.chain_replay import replay
from tests.exporter.bundles import TwoTables

ROWS = 64


def make_model() -> keras.Model:
    inputs = {
        "user": keras.Input((2,), dtype="int64", name="user"),
        "country": keras.Input((1,), dtype="string", name="country"),
    }
    users = keras.layers.Flatten()(hotdelta.keras.Embedding(ROWS, 4)(inputs["user"]))
    code = keras.layers.StringLookup(vocabulary=["at", "ch", "de"])(inputs["country"])
    countries = keras.layers.Flatten()(keras.layers.Embedding(4, 3)(code))
    hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()([users, countries]))
    return keras.Model(inputs, {"score": keras.layers.Dense(1)(hidden)})


@dataclass(frozen=True)
class Trained:
    """A finished run: its directory, the model as it was at the end, and the positions committed."""

    run_dir: Path
    model: keras.Model
    manifests: tuple[Manifest, ...]

    @property
    def newest(self) -> Manifest:
        return self.manifests[-1]

    def values(self, position: Position, schema: Schema) -> Mapping[str, bytes]:
        return replay(self.run_dir, position, [variable.key for variable in schema.variables])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    model = make_model()
    model.compile(hotdelta.keras.Adagrad(0.1), "mse")
    random = np.random.default_rng(0)
    with hotdelta.keras.DeltaCheckpoint(run_dir, None, None) as checkpoint:
        checkpoint.resume(model)
        for number in range(4):
            batch = {
                "user": random.integers(0, ROWS, (8, 2)),
                "country": tf.constant(random.choice(["at", "ch", "de"], (8, 1)).tolist()),
            }
            model.train_on_batch(batch, random.random((8, 1)))
            checkpoint.step()
            checkpoint.save_full() if number == 1 else checkpoint.save()
    return Trained(run_dir, model, Scanner(run_dir).scan().manifests)


@pytest.fixture(scope="module")
def export(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_saved_model(trained.run_dir, tmp_path_factory.mktemp("export"), save_incr_model=True)


def metadata_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / contract.METADATA_FILE).read_text())
    return document


def schema_of(path: Path) -> Schema:
    return Schema.from_json(json.dumps(metadata_of(path)["schema"]).encode())


def values_of(path: Path) -> dict[str, bytes]:
    loaded = tf.saved_model.load(str(path))
    pairs = zip(schema_of(path).variables, loaded.hotdelta_variables, strict=True)
    return {spec.key: variable.numpy().tobytes() for spec, variable in pairs}


def copy_of(trained: Trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.run_dir, tmp_path / "run"))


def test_the_newest_state_is_exported_bit_for_bit(trained: Trained, export: Path) -> None:
    newest = trained.newest
    assert values_of(export) == trained.values(newest.position, schema_of(export))
    loaded = tf.saved_model.load(str(export))
    answer = loaded.signatures["identity"]()
    assert decode_identity(answer["identity"].numpy())[0] == newest.node
    assert answer["step"].numpy() == newest.step


def test_predictions_of_the_export_are_those_of_the_trained_model(trained: Trained, export: Path) -> None:
    batch = {"user": tf.constant([[1, 63]], tf.int64), "country": tf.constant([["ch"]])}
    found = tf.saved_model.load(str(export)).signatures["serving_default"](**batch)
    np.testing.assert_allclose(found["score"], trained.model(batch, training=False)["score"], rtol=1e-6)


def test_lookup_tables_are_initialised_in_a_session(trained: Trained, export: Path) -> None:
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definition = tf.compat.v1.saved_model.load(session, ["serve"], str(export)).signature_def[
            "serving_default"
        ]
        feeds = {definition.inputs["user"].name: [[1, 63]], definition.inputs["country"].name: [["ch"]]}
        found = session.run(definition.outputs["score"].name, feeds)
    batch = {"user": tf.constant([[1, 63]], tf.int64), "country": tf.constant([["ch"]])}
    np.testing.assert_allclose(found, trained.model(batch, training=False)["score"], rtol=1e-6)


def test_metadata_says_what_the_export_is(trained: Trained, export: Path) -> None:
    document = metadata_of(export)
    newest = trained.newest
    assert document["metadata_version"] == contract.METADATA_VERSION
    assert document["position"] == str(newest.position)
    assert document["state_id"] == newest.state_id
    assert document["step"] == newest.step
    assert document["save_incr_model"] is True
    assert document["signatures"] == ["serving_default"]
    assert document["schema_digest"] == newest.schema == schema_of(export).digest
    assert document["model_name"] == export.parent.name


def test_optimizer_slots_are_not_in_the_export(trained: Trained, export: Path) -> None:
    names = [name for name, _ in tf.train.list_variables(str(export / "variables" / "variables"))]
    assert names
    assert not [name for name in names if "optimizer" in name or "accumulator" in name]
    shapes = dict(tf.train.list_variables(str(export / "variables" / "variables")))
    assert sum(shape == [ROWS, 4] for shape in shapes.values()) == 1


def test_slots_are_not_needed_to_export(trained: Trained, tmp_path: Path) -> None:
    run_dir = copy_of(trained, tmp_path)
    for manifest in trained.manifests:
        for file in manifest.files:
            if file.role == "training":
                (directory_of(run_dir, manifest.kind) / file.name).unlink()
    path = export_saved_model(run_dir, tmp_path / "export", save_incr_model=True)
    assert values_of(path) == trained.values(trained.newest.position, schema_of(path))


def test_an_earlier_position_is_exported_on_request_and_takes_the_rest(
    trained: Trained, tmp_path: Path
) -> None:
    first = trained.manifests[0].position
    path = export_saved_model(trained.run_dir, tmp_path, position=str(first), save_incr_model=True, version=7)
    assert path == tmp_path / "7"
    schema = schema_of(path)
    assert values_of(path) == trained.values(first, schema)
    loaded = tf.saved_model.load(str(path))
    for manifest in trained.manifests:
        if manifest.kind is Kind.DELTA:
            prefix = directory_of(trained.run_dir, Kind.DELTA) / manifest.prefix
            loaded.signatures["restore_incremental"](prefix=tf.constant([str(prefix)]))
    found = [variable.numpy().tobytes() for variable in loaded.hotdelta_variables]
    assert found == list(trained.values(trained.newest.position, schema).values())


def test_by_default_an_export_only_loads_fulls(trained: Trained, tmp_path: Path) -> None:
    path = export_saved_model(trained.run_dir, tmp_path)
    loaded = tf.saved_model.load(str(path))
    assert sorted(loaded.signatures) == sorted(["serving_default", *contract.FULL_SIGNATURES])
    assert metadata_of(path)["save_incr_model"] is False
    assert values_of(path) == trained.values(trained.newest.position, schema_of(path))


def test_only_the_signatures_that_are_kept_are_exported(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no signature 'other'.*serving_default"):
        export_saved_model(trained.run_dir, tmp_path, signatures=["other"])
    path = export_saved_model(trained.run_dir, tmp_path, signatures=["serving_default"])
    assert metadata_of(path)["schema_digest"] == trained.newest.schema


def test_a_damaged_delta_is_stepped_over_backwards_unless_it_was_asked_for(
    trained: Trained, tmp_path: Path
) -> None:
    run_dir = copy_of(trained, tmp_path)
    newest = trained.newest
    data = next(file for file in newest.files if file.role == "serving")
    path = directory_of(run_dir, newest.kind) / data.name
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with pytest.raises(DamagedError, match=str(newest.position)):
        export_saved_model(run_dir, tmp_path / "export", position=newest.position)
    exported = export_saved_model(run_dir, tmp_path / "export", save_incr_model=True)
    assert newest.parent is not None
    assert metadata_of(exported)["position"] == str(newest.parent.position)


def test_a_directory_without_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no checkpoint yet.*start the trainer"):
        export_saved_model(tmp_path, tmp_path / "export")
    with pytest.raises(ConfigurationError, match="no directory"):
        export_saved_model(tmp_path / "nowhere", tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_a_position_that_is_not_there_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no position 9\.9"):
        export_saved_model(trained.run_dir, tmp_path, position="9.9")


def test_a_directory_without_any_valid_full_is_refused(trained: Trained, tmp_path: Path) -> None:
    run_dir = copy_of(trained, tmp_path)
    for manifest in run_dir.glob("*.manifest.json"):
        manifest.unlink()
    with pytest.raises(ChainError):
        export_saved_model(run_dir, tmp_path / "export")


def test_a_run_that_left_no_serving_graph_is_refused_with_the_remedy(
    trained: Trained, tmp_path: Path
) -> None:
    run_dir = copy_of(trained, tmp_path)
    (graph,) = run_dir.glob(".incremental_checkpoint/serving_graph-*")
    shutil.rmtree(graph)
    with pytest.raises(ModelMismatchError, match=r"no serving graph.*signatures"):
        export_saved_model(run_dir, tmp_path / "export")


def test_save_incr_model_without_tables_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ConfigurationError, match=r"no embedding table.*without save_incr_model"):
        export_saved_model(model, tmp_path, save_incr_model=True)
    assert export_saved_model(model, tmp_path).name == "1"


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


def test_a_module_needs_signatures_and_known_tables(tmp_path: Path) -> None:
    module = TwoTables()
    with pytest.raises(ConfigurationError, match="signatures="):
        export_saved_model(module, tmp_path)
    with pytest.raises(ConfigurationError, match=r"'nothing' is no variable.*users"):
        export_saved_model(module, tmp_path, signatures={"serving_default": module.score}, tables=["nothing"])
    with pytest.raises(ConfigurationError, match="int cannot be exported"):
        export_saved_model(3, tmp_path)


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


class WholeTable(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.items = keras.layers.Embedding(8, 4)

    def call(self, inputs: Any) -> Any:
        return tf.matmul(self.items(inputs), self.items.embeddings, transpose_b=True)


def test_what_reads_a_whole_table_is_exported_only_when_allowed_by_name(tmp_path: Path) -> None:
    model = WholeTable()
    model(np.array([1]))
    with pytest.raises(ConfigurationError, match="items/embeddings"):
        export_saved_model(model, tmp_path)
    assert not list(tmp_path.iterdir())
    export_saved_model(model, tmp_path, allow_whole_table_reads=["items/embeddings"])


def test_a_difference_from_the_checkpoint_is_named(trained: Trained, export: Path) -> None:
    schema = schema_of(export)
    values = {item.key: item.variable.numpy() for item in model_variables(trained.model)}
    table = schema.tables[0]
    values[table.key] = np.array(values[table.key])
    values[table.key][5, 1] += 1
    expected = {spec.key: fingerprint_array(values[spec.key], spec) for spec in schema.variables}
    with pytest.raises(ModelMismatchError, match=f"{table.key}: rows 0 to"):
        verify_export(export, schema, Expected(expected))


def test_versions_count_up_and_are_never_written_again(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "41").mkdir()
    (tmp_path / "notes").mkdir()
    path = export_saved_model(trained.run_dir, tmp_path)
    assert path.name == "42"
    with pytest.raises(ConfigurationError, match="exists already"):
        export_saved_model(trained.run_dir, tmp_path, version=41)
    assert not list((tmp_path / "41").iterdir())
