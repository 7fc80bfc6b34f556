"""What cannot be exported is refused before anything is written, with the reason and what to do."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from exporter.fingerprint import fingerprint
from exporter.proof import Expected, verify_export
from exporter.sources import source_of
from hotdelta.chain.format.schema import Schema, VariableSpec
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ChainError, ConfigurationError, DamagedError, ModelMismatchError
from hotdelta.keras.model.structure import model_variables
from tests.exporter.bundles import TwoTables
from tests.exporter.trained_run import Trained, copy_of, metadata_of, schema_of

pytestmark = pytest.mark.I9


def test_a_damaged_delta_is_stepped_over_backwards_unless_it_was_asked_for(
    trained: Trained, tmp_path: Path
) -> None:
    run_dir = copy_of(trained, tmp_path)
    newest = trained.newest
    data = next(file for file in newest.files if file.role == "serving")
    path = directory_of(run_dir, newest.kind) / data.name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 0x55]))
    with pytest.raises(DamagedError, match=str(newest.position)):
        export_saved_model(run_dir, tmp_path / "export", position=newest.position)
    exported = export_saved_model(run_dir, tmp_path / "export", save_incr_model=True)
    assert newest.parent is not None
    assert metadata_of(exported)["position"] == str(newest.parent.position)


def test_a_directory_without_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no checkpoint yet.*start the trainer"):
        export_saved_model(tmp_path, tmp_path.with_name("export"))
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
    with pytest.raises(ConfigurationError, match=r"nothing to update row by row.*without `save_incr_model`"):
        export_saved_model(model, tmp_path, save_incr_model=True)
    assert export_saved_model(model, tmp_path).name == "1"


def test_a_module_needs_signatures_and_known_tables(tmp_path: Path) -> None:
    module = TwoTables()
    with pytest.raises(ConfigurationError, match="signatures="):
        export_saved_model(module, tmp_path)
    with pytest.raises(ConfigurationError, match=r"'nothing' is no variable.*users"):
        export_saved_model(module, tmp_path, signatures={"serving_default": module.score}, tables=["nothing"])
    with pytest.raises(ConfigurationError, match="int cannot be exported"):
        export_saved_model(3, tmp_path)


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


def test_a_difference_from_the_checkpoint_is_named(trained: Trained, trained_export: Path) -> None:
    schema = schema_of(trained_export)
    values = {item.key: item.variable.numpy() for item in model_variables(trained.model)}
    table = schema.tables[0]
    values[table.key] = np.array(values[table.key])
    values[table.key][5, 1] += 1
    expected = {spec.key: fingerprint(spec, [values[spec.key]]) for spec in schema.variables}
    with pytest.raises(ModelMismatchError, match=f"{table.key}: rows 0 to"):
        verify_export(trained_export, schema, Expected(expected))


class RestoresNothing(tf.Module):
    """Holds the right values, and says that it restored them."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__()
        self.hotdelta_variables = [tf.Variable(values)]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="prefix")])
    def restore_full(self, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"rows": tf.zeros_like(prefix, tf.int64)}


def test_a_restore_that_does_nothing_is_not_taken_for_one_that_works(
    trained: Trained, tmp_path: Path
) -> None:
    values = np.ones([8, 2], np.float32)
    module = RestoresNothing(values)
    tf.saved_model.save(module, str(tmp_path), signatures={"restore_full": module.restore_full})
    schema = Schema((VariableSpec("table", values.shape, "float32", is_table=True),), {}, {})
    saved = {"table": fingerprint(schema.variables[0], [values])}
    state = source_of(trained.run_dir).state
    assert state is not None
    expected = Expected(saved, replace(state, deltas=()), lambda: saved)
    with pytest.raises(ModelMismatchError, match="no values after restoring"):
        verify_export(tmp_path, schema, expected)


def test_versions_count_up_and_are_never_written_again(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "41").mkdir()
    (tmp_path / "notes").mkdir()
    path = export_saved_model(trained.run_dir, tmp_path)
    assert path.name == "42"
    with pytest.raises(ConfigurationError, match="exists already"):
        export_saved_model(trained.run_dir, tmp_path, version=41)
    assert not list((tmp_path / "41").iterdir())


@pytest.mark.parametrize(
    "options, problem",
    [
        *(({"version": version}, "is no version number") for version in (0, -1, 10**18, "7", 1.5, True)),
        ({"position": 3.1}, "write it as a string"),
        ({"position": "newest"}, "'newest' is not a position"),
        ({"tables": ["users"]}, "leave tables out"),
        ({"signatures": "serving_default"}, "list of the names to keep"),
        ({"signatures": {"serving_default": None}}, "list of the names to keep"),
        ({"signatures": []}, "has no signatures"),
    ],
)
def test_options_that_mean_nothing_for_a_checkpoint_directory_are_refused(
    trained: Trained, tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        export_saved_model(trained.run_dir, tmp_path / "export", **options)
    assert not (tmp_path / "export").exists()


def test_a_file_in_place_of_the_export_directory_is_said(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for export_dir in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match="a file or a dangling link is in the way"):
            export_saved_model(trained.run_dir, export_dir)


def test_checkpoints_of_somebody_else_are_not_called_none_at_all(tmp_path: Path) -> None:
    tf.train.Checkpoint(step=tf.Variable(1)).save(str(tmp_path / "model.ckpt"))
    with pytest.raises(ConfigurationError, match="none that a trainer with hotdelta has committed"):
        export_saved_model(tmp_path, tmp_path.with_name("export"))
