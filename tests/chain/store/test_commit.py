from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.chain import Disk, Kind, Scanner, commit, directory_of, encode_identity
from hotdelta.errors import CommitError
from tests.chain.manifests import node
from tests.chain.model_trainer import ModelServer, ModelTrainer, describe, read_rows, write_bundle
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.I3


def test_import_of_the_chain_does_not_import_tensorflow() -> None:
    program = "import sys, hotdelta.chain; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3], timeout=LIMIT_SECONDS
    )


def test_committed_names_are_never_overwritten(tmp_path: Path) -> None:
    trainer = ModelTrainer(tmp_path, Disk())
    trainer.open()
    trainer.save({1: 1}, Kind.FULL)
    trainer.step = 0
    with pytest.raises(CommitError, match="File exists"):
        trainer.save({1: 2}, Kind.FULL)
    server = ModelServer(tmp_path)
    server.follow()
    assert server.rows == {1: 1}
    trainer.close()


def test_manifest_name_that_is_taken_keeps_its_content(tmp_path: Path) -> None:
    taken = tmp_path / "model.ckpt-1.manifest.json"
    taken.write_text("taken")
    trainer = ModelTrainer(tmp_path, Disk())
    trainer.open()
    with pytest.raises(CommitError):
        trainer.save({1: 1}, Kind.FULL)
    assert taken.read_text() == "taken"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [taken.name]
    trainer.close()


def test_bundle_is_committed_under_the_prefix_it_was_renamed_to(tmp_path: Path) -> None:
    own = node("1.1")
    prepared = write_bundle(
        tmp_path, "model.ckpt-building", {1: 5}, identity=encode_identity(own, None), disk=Disk()
    )
    renamed = prepared.renamed("model.ckpt-40")
    commit(renamed, describe(Kind.FULL, own, None, renamed, step=40), disk=Disk())
    manifest = Scanner(tmp_path).scan().manifests[0]
    assert manifest.prefix == "model.ckpt-40"
    assert read_rows(tmp_path, manifest) == {1: 5}
    assert not [path for path in tmp_path.iterdir() if "building" in path.name]


def test_manifest_of_another_bundle_is_refused(tmp_path: Path) -> None:
    identity = encode_identity(node("1.1"), None)
    one = write_bundle(tmp_path, "model.ckpt-1", {1: 1}, identity=identity, disk=Disk())
    two = write_bundle(tmp_path, "model.ckpt-2", {1: 2}, identity=identity, disk=Disk())
    with pytest.raises(ValueError, match="does not describe"):
        commit(one, describe(Kind.FULL, node("1.1"), None, two, step=1), disk=Disk())


def test_directory_removed_while_training_is_a_commit_error_that_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    trainer = ModelTrainer(run_dir, Disk())
    trainer.open()
    trainer.save({1: 1}, Kind.FULL)
    directory_of(run_dir, Kind.DELTA).rename(tmp_path / "gone")
    with pytest.raises(CommitError, match="directory was removed"):
        trainer.save({1: 2}, Kind.DELTA)
    trainer.close()
