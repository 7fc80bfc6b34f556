"""A chain with more deltas than a process may open files is exported, resumed and loaded, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
from benchmarks.lengthened_chain import lengthen
from exporter import export_saved_model
from hotdelta.chain import BundleReader, Manifest, Scanner
from hotdelta.chain.format import names
from hotdelta.export_metadata import read_metadata
from tests.chain.open_files import files_that_may_be_opened
from tests.chaos.hostile import publish, rewrite
from tests.loader.step_model import (
    StepModel,
    Trainer,
    answer,
    export,
    serving,
    serving_file,
    wait_for_position,
    wait_for_status,
)

DELTAS = 1_100
BAD = 700
OPEN_FILES = 100
TABLES = ("users", "items")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export beside it holds the first delta."""
    root = tmp_path_factory.mktemp("long")
    trainer = Trainer(root / "run")
    trainer.train([1, 2])
    trainer.close()
    export(trainer.run_dir, root / "export")
    lengthen(trainer.run_dir, DELTAS - 1)
    return trainer.run_dir


@pytest.fixture(scope="module")
def expected(run_dir: Path) -> Mapping[str, bytes]:
    return _tables_until(run_dir, None)


def _tables_until(run_dir: Path, end: int | None) -> Mapping[str, bytes]:
    """The tables, delta by delta."""
    model = StepModel()
    tables = {name: getattr(model, name).numpy() for name in TABLES}
    for manifest in Scanner(run_dir).scan().manifests[1:end]:
        with BundleReader(run_dir / names.DELTA_DIRECTORY, manifest.prefix) as reader:
            for name, table in tables.items():
                table[reader.map(name + names.IDS_SUFFIX)] = reader.map(name + names.ROWS_SUFFIX)
    return {name: table.tobytes() for name, table in tables.items()}


def spoil_digest(run_dir: Path, manifest: Manifest) -> str:
    path = serving_file(run_dir, manifest)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    return "does not have the digest"


def spoil_values(run_dir: Path, manifest: Manifest) -> str:
    rows = np.full((2, 4), np.nan, np.float32)
    publish(run_dir, rewrite(run_dir, manifest, users__rows=rows))
    return "NaN or infinite"


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


def test_server_starts_on_a_chain_of_many_deltas(run_dir: Path, expected: Mapping[str, bytes]) -> None:
    """It takes them as a few updates, and ends where one by one it would."""
    with files_that_may_be_opened(OPEN_FILES), serving(run_dir.parent) as loader:
        newest = Scanner(run_dir).scan().manifests[-1]
        wait_for_position(loader, newest.position)
        outputs, version = answer(loader)
        assert {name: outputs[name].tobytes() for name in TABLES} == expected
        status = loader.status()
    assert (version.step, status.node) == (DELTAS, newest.node)
    assert status.deltas_since_full == DELTAS


@pytest.mark.parametrize("spoil", [spoil_digest, spoil_values])
def test_server_that_starts_stops_before_a_bad_delta_among_many(
    run_dir: Path, tmp_path: Path, spoil: Callable[[Path, Manifest], str]
) -> None:
    """What is before it in the same fold is served; it is told of as if it had come alone."""
    root = tmp_path / "copy"
    shutil.copytree(run_dir.parent, root)
    bad = Scanner(root / "run").scan().manifests[BAD]
    reason = spoil(root / "run", bad)
    with serving(root) as loader:
        wait_for_status(
            loader, lambda status: any(reason in item.reason for item in status.quarantined), reason
        )
        status = loader.status()
        outputs, version = answer(loader)
    assert status.node == bad.parent
    assert [item.node for item in status.quarantined] == [bad.node]
    assert {name: outputs[name].tobytes() for name in TABLES} == _tables_until(run_dir, BAD)
    assert bad.parent is not None
    assert version.position == bad.parent.position


def test_chain_of_many_deltas_is_loaded(run_dir: Path, expected: Mapping[str, bytes]) -> None:
    model = StepModel()
    with files_that_may_be_opened(OPEN_FILES):
        hio.load_persistables(model, run_dir)

    assert found_in(model) == expected
