from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import BundleWriter, Disk, Kind, Scanner, TensorLayout, directory_of, sweep
from hotdelta.chain.format import names
from hotdelta.chain.store.commit import publish_file
from hotdelta.errors import CommitError
from tests.chain.model_trainer import ModelTrainer

pytestmark = pytest.mark.I3

FOREIGN = [
    "notes.txt",
    "model.ckpt-best.h5",
    "model.ckpt-5.meta",
    "my_model.ckpt-5.index",
    ".tmp-notes",
    "events.out.tfevents.1",
    "model.ckpt-77.data-00000-of-00001",
]


def list_files(run_dir: Path) -> set[str]:
    return {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}


def write_orphan(directory: Path, prefix: str, tensor: str) -> None:
    """A bundle without a manifest, as a crash, or a tf.train.Saver, leaves it."""
    layout = [TensorLayout(tensor, "int64", (1,), 0)]
    writer = BundleWriter(directory, prefix, layout, shard_roles=[names.ROLE_SERVING], disk=Disk())
    writer.write(tensor, np.zeros(1, np.int64))
    for name, temporary in writer.finish().temporary_names.items():
        (directory / temporary).rename(directory / name)


def run_sweep(run_dir: Path) -> list[str]:
    return sweep(run_dir, Scanner(run_dir).scan(), Disk())


def commit_two(run_dir: Path) -> None:
    trainer = ModelTrainer(run_dir, Disk())
    trainer.open()
    trainer.save({1: 1}, Kind.FULL)
    trainer.save({1: 2}, Kind.DELTA)
    trainer.close()


def test_leftovers_go_and_everything_else_stays(tmp_path: Path) -> None:
    commit_two(tmp_path)
    for name in FOREIGN:
        (tmp_path / name).write_text("x")
    write_orphan(tmp_path, "model.ckpt-6", "kernel")
    before = list_files(tmp_path)
    write_orphan(tmp_path, "model.ckpt-8", names.IDENTITY_TENSOR)
    write_orphan(directory_of(tmp_path, Kind.DELTA), "incremental_model.ckpt-9-2.1", names.IDENTITY_TENSOR)
    for name in [".tmp-model.ckpt-3.index", ".tmp-checkpoint", "model.ckpt-3.index.tempstate123"]:
        (tmp_path / name).write_text("x")
    removed = run_sweep(tmp_path)
    assert list_files(tmp_path) == before
    assert len(removed) == 7


def test_data_whose_index_was_not_renamed_yet_goes_too(tmp_path: Path) -> None:
    write_orphan(tmp_path, "model.ckpt-8", names.IDENTITY_TENSOR)
    index = tmp_path / "model.ckpt-8.index"
    index.rename(tmp_path / f"{names.TEMPORARY_PREFIX}model.ckpt-8.index")
    run_sweep(tmp_path)
    assert list_files(tmp_path) == set()


def test_files_of_a_refused_manifest_stay(tmp_path: Path) -> None:
    commit_two(tmp_path)
    manifest = tmp_path / "model.ckpt-1.manifest.json"
    manifest.write_text('{"format_version": 3}')
    before = list_files(tmp_path)
    assert run_sweep(tmp_path) == []
    assert list_files(tmp_path) == before


def test_sweep_of_a_missing_directory_is_nothing(tmp_path: Path) -> None:
    assert run_sweep(tmp_path / "none") == []


def test_small_file_is_published_once_and_never_overwritten(tmp_path: Path) -> None:
    publish_file(tmp_path, "schema-1.json", b"one", Disk())
    publish_file(tmp_path, "schema-1.json", b"one", Disk())
    with pytest.raises(CommitError, match="other content"):
        publish_file(tmp_path, "schema-1.json", b"two", Disk())
    assert list_files(tmp_path) == {"schema-1.json"}
    assert (tmp_path / "schema-1.json").read_bytes() == b"one"
