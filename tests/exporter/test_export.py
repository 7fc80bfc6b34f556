"""Exports from a checkpoint directory that a real trainer wrote: the right state, whole, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from hotdelta import signatures as contract
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import decode_identity
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ConfigurationError
from hotdelta.train import DeltaWriter
from tests.exporter.trained_run import ROWS, Trained, copy_of, metadata_of, schema_of, values_of


def test_the_newest_state_is_exported_bit_for_bit(trained: Trained, trained_export: Path) -> None:
    newest = trained.newest
    assert values_of(trained_export) == trained.values(newest.position, schema_of(trained_export))
    loaded = tf.saved_model.load(str(trained_export))
    answer = loaded.signatures["identity"]()
    assert decode_identity(answer["identity"].numpy())[0] == newest.node
    assert answer["step"].numpy() == newest.step


def test_predictions_of_the_export_are_those_of_the_trained_model(
    trained: Trained, trained_export: Path
) -> None:
    batch = {"user": tf.constant([[1, 63]], tf.int64), "country": tf.constant([["ch"]])}
    found = tf.saved_model.load(str(trained_export)).signatures["serving_default"](**batch)
    np.testing.assert_allclose(found["score"], trained.model(batch, training=False)["score"], rtol=1e-6)


def test_lookup_tables_are_initialised_in_a_session(trained: Trained, trained_export: Path) -> None:
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definition = tf.compat.v1.saved_model.load(session, ["serve"], str(trained_export)).signature_def[
            "serving_default"
        ]
        feeds = {definition.inputs["user"].name: [[1, 63]], definition.inputs["country"].name: [["ch"]]}
        found = session.run(definition.outputs["score"].name, feeds)
    batch = {"user": tf.constant([[1, 63]], tf.int64), "country": tf.constant([["ch"]])}
    np.testing.assert_allclose(found, trained.model(batch, training=False)["score"], rtol=1e-6)


def test_metadata_says_what_the_export_is(trained: Trained, trained_export: Path) -> None:
    document = metadata_of(trained_export)
    newest = trained.newest
    assert document["metadata_version"] == contract.METADATA_VERSION
    assert document["position"] == str(newest.position)
    assert document["state_id"] == newest.state_id
    assert document["step"] == newest.step
    assert document["save_incr_model"] is True
    assert document["signatures"] == ["serving_default"]
    assert document["schema_digest"] == newest.schema == schema_of(trained_export).digest
    assert document["model_name"] == trained_export.parent.name


def test_optimizer_slots_are_not_in_the_export(trained: Trained, trained_export: Path) -> None:
    names = [name for name, _ in tf.train.list_variables(str(trained_export / "variables" / "variables"))]
    assert names
    assert not [name for name in names if "optimizer" in name or "accumulator" in name]
    shapes = dict(tf.train.list_variables(str(trained_export / "variables" / "variables")))
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


def test_tables_and_variables_may_have_any_name(tmp_path: Path) -> None:
    names = ["a:b", "a_b", "user id", "größe", "$x", "p,q", "@at", "back\\slash", "_hidden", "A", "a"]
    tables = {name: tf.Variable(tf.fill([4, 2], float(number))) for number, name in enumerate(names)}
    bias = tf.Variable([1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def score(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": tf.add_n([tf.gather(table, ids) for table in tables.values()]) + bias}

    variables = {**tables, "bias, all": bias}
    with DeltaWriter(tmp_path / "run", variables, tables=names, signatures={"serving_default": score}):
        pass
    path = export_saved_model(tmp_path / "run", tmp_path / "export", save_incr_model=True)
    assert values_of(path) == {name: variable.numpy().tobytes() for name, variable in variables.items()}
