"""A chain with more deltas than a process may open files is exported, resumed and loaded, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import tensorflow as tf

import hotdelta.io as hio
from benchmarks.lengthened_chain import lengthen
from exporter import export_saved_model
from hotdelta.chain import BundleReader, Scanner
from hotdelta.chain.format import names
from hotdelta.export_metadata import read_metadata
from tests.chain.open_files import files_that_may_be_opened
from tests.loader.step_model import StepModel, Trainer

DELTAS = 1_100
OPEN_FILES = 100
TABLES = ("users", "items")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer = Trainer(tmp_path_factory.mktemp("long") / "run")
    trainer.train([1, 2])
    trainer.close()
    lengthen(trainer.run_dir, DELTAS - 1)
    return trainer.run_dir


@pytest.fixture(scope="module")
def expected(run_dir: Path) -> Mapping[str, bytes]:
    """The tables, delta by delta."""
    model = StepModel()
    tables = {name: getattr(model, name).numpy() for name in TABLES}
    for manifest in Scanner(run_dir).scan().manifests[1:]:
        with BundleReader(run_dir / names.DELTA_DIRECTORY, manifest.prefix) as reader:
            for name, table in tables.items():
                table[reader.map(name + names.IDS_SUFFIX)] = reader.map(name + names.ROWS_SUFFIX)
    return {name: table.tobytes() for name, table in tables.items()}


def found_in(model: StepModel) -> Mapping[str, bytes]:
    return {name: getattr(model, name).numpy().tobytes() for name in TABLES}


def test_chain_of_many_deltas_is_exported(
    run_dir: Path, expected: Mapping[str, bytes], tmp_path: Path
) -> None:
    with files_that_may_be_opened(OPEN_FILES):
        exported = export_saved_model(run_dir, tmp_path / "export", save_incr_model=True)

    metadata = read_metadata(exported)
    assert metadata.step == DELTAS
    variables = tf.saved_model.load(str(exported)).hotdelta_variables
    pairs = zip(metadata.schema.variables, variables, strict=True)
    found = {spec.key: variable.numpy().tobytes() for spec, variable in pairs if spec.is_table}
    assert found == expected


def test_trainer_resumes_a_chain_of_many_deltas(run_dir: Path, expected: Mapping[str, bytes]) -> None:
    with files_that_may_be_opened(OPEN_FILES):
        trainer = Trainer(run_dir)
        trainer.close()

    assert trainer.step == DELTAS
    assert found_in(trainer.model) == expected


def test_chain_of_many_deltas_is_loaded(run_dir: Path, expected: Mapping[str, bytes]) -> None:
    model = StepModel()
    with files_that_may_be_opened(OPEN_FILES):
        hio.load_persistables(model, run_dir)

    assert found_in(model) == expected
