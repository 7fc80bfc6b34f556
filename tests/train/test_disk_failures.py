"""Disk full, permission denied, directory removed: training goes on, and no row is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdelta.chain.manifest import Kind, Tracking
from hotdelta.train.schedule import SaveEvery
from tests.chain_replay import replay
from tests.train.conftest import StartTraining
from tests.train.small_training import BY_HAND, BrokenDisk, SmallTraining

BOTH = pytest.mark.parametrize("mode", list(Tracking))
EVERY_STEP = dataclasses.replace(BY_HAND, delta=SaveEvery(steps=1), full=SaveEvery(steps=4))


def assert_exact_now(training: SmallTraining) -> None:
    """The newest commit holds what the variables hold, without a full that would hide what a delta lost."""
    position = training.save()
    assert position is not None
    assert replay(training.run_dir, position, training.variables) == training.values()


@BOTH
@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_rows_of_a_failed_delta_are_in_the_next(
    start_training: StartTraining, mode: Tracking, error_number: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = BrokenDisk()
    training = start_training(mode=mode, disk=disk)
    training.train(steps=2)
    training.save()
    disk.error_number = error_number
    before = training.trainer.position
    for _ in range(3):
        training.train()
        assert training.trainer.save() == before
    assert training.trainer.status.failures == 3
    assert "delta not committed" in caplog.text
    assert training.trainer.status.last_error in caplog.text
    disk.repair()
    training.train()
    assert_exact_now(training)
    training.check()


@BOTH
def test_a_position_is_never_used_again_after_a_failed_commit(
    start_training: StartTraining, mode: Tracking
) -> None:
    disk = BrokenDisk()
    training = start_training(mode=mode, disk=disk)
    training.train()
    disk.fill()
    training.trainer.save()
    disk.repair()
    position = training.save()
    assert position is not None
    assert position.seq == 3
    training.check()


@BOTH
def test_training_goes_on_while_neither_deltas_nor_fulls_can_be_written(
    start_training: StartTraining, mode: Tracking
) -> None:
    disk = BrokenDisk()
    training = start_training(mode=mode, disk=disk, options=EVERY_STEP)
    training.train(steps=6)
    disk.fill()
    for _ in range(12):
        training.train()
        training.settle_full()
    assert training.trainer.status.failures > 12
    disk.repair()
    for _ in range(6):
        training.train()
        training.settle_full()
    assert_exact_now(training)
    training.trainer.finish()
    training.remember()
    assert len(training.manifests(Kind.FULL)) > 1
    training.check()
    training.close()
    resumed = start_training(mode=mode, seed=1)
    assert resumed.values() == training.values()


@BOTH
def test_a_full_that_fails_leaves_the_chain_as_it_is(start_training: StartTraining, mode: Tracking) -> None:
    disk = BrokenDisk()
    training = start_training(mode=mode, disk=disk)
    training.train()
    disk.fill()
    training.trainer.save_full()
    assert len(training.manifests(Kind.FULL)) == 1
    disk.repair()
    assert_exact_now(training)
    training.check()
    assert [path.name for path in training.run_dir.iterdir() if path.name.startswith(".tmp")] == []


@BOTH
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_removed_directory_gets_a_new_chain_that_starts_with_a_full(
    start_training: StartTraining, mode: Tracking, is_made_again: bool, tmp_path: Path
) -> None:
    training = start_training(tmp_path / "run", mode=mode, options=EVERY_STEP)
    training.train(steps=3)
    shutil.rmtree(training.run_dir)
    if is_made_again:
        training.run_dir.mkdir()
    for _ in range(4):
        training.train()
        training.settle_full()
    assert training.trainer.status.failures > 0
    training.saved.clear()
    assert_exact_now(training)
    assert training.trainer.status.rows_unrecorded == 0
    training.check()
    training.close()
    resumed = start_training(tmp_path / "run", mode=mode, seed=1)
    assert resumed.values() == training.values()


@BOTH
def test_the_last_save_after_the_directory_was_removed_is_a_full(
    start_training: StartTraining, mode: Tracking, tmp_path: Path
) -> None:
    training = start_training(tmp_path / "run", mode=mode)
    training.train(steps=3)
    training.save()
    shutil.rmtree(training.run_dir)
    training.train()
    training.saved.clear()
    assert_exact_now(training)
    assert len(training.manifests(Kind.FULL)) == 1


def test_files_removed_while_their_directory_stays_are_noticed(start_training: StartTraining) -> None:
    training = start_training()
    training.train()
    training.save()
    for path in [
        *training.run_dir.glob("model.ckpt*"),
        *training.run_dir.glob(".incremental_checkpoint/incr*"),
    ]:
        path.unlink()
    training.train()
    training.saved.clear()
    assert_exact_now(training)


def test_the_scrub_finds_nothing_after_failures_and_a_new_chain(
    start_training: StartTraining, tmp_path: Path
) -> None:
    options = dataclasses.replace(BY_HAND, scrub_saves=2)
    training = start_training(tmp_path / "run", options=options)
    training.train(steps=3)
    shutil.rmtree(training.run_dir)
    for _ in range(6):
        training.train()
        training.save()
    assert training.trainer.status.rows_unrecorded == 0


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of half a megabyte, where we may mount one."""
    mounted = tmp_path / "tiny"
    mounted.mkdir()
    command = ["/bin/mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(mounted)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield mounted
    subprocess.run(["/bin/umount", str(mounted)], check=True)


def fill_up(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_disk_that_is_really_full_is_survived(start_training: StartTraining, tiny_disk: Path) -> None:
    training = start_training(tiny_disk / "run")
    training.train()
    training.save()
    ballast = tiny_disk / "ballast"
    fill_up(ballast)
    training.train()
    training.trainer.save()
    assert "No space left" in training.trainer.status.last_error
    ballast.unlink()
    training.train()
    assert_exact_now(training)
    training.check()
    training.trainer.close()
