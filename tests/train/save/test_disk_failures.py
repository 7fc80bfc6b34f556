"""Disk full, permission denied, directory removed: training goes on, and no row is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.format.names import DELTA_DIRECTORY, MANIFEST_SUFFIX
from hotdelta.errors import CommitError, UnsavedError
from hotdelta.logs import FIRST_SILENT_SECONDS
from hotdelta.train.save.schedule import SaveEvery
from tests.chain_replay import replay
from tests.train.conftest import StartTraining
from tests.train.small_training import BY_HAND, BrokenDisk, Clock, SmallTraining

pytestmark = pytest.mark.I6

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
    assert caplog.text.count("delta not committed") == 1
    assert os.strerror(error_number) in caplog.text
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
def test_the_end_of_training_raises_while_its_last_save_is_not_on_disk(
    start_training: StartTraining, mode: Tracking
) -> None:
    disk = BrokenDisk()
    training = start_training(mode=mode, disk=disk, options=EVERY_STEP)
    training.train(steps=2)
    training.trainer.finish()
    position = training.trainer.position
    disk.fill()
    training.train(steps=3)
    with pytest.raises(UnsavedError, match=f"3 steps.* since position {position} would be lost") as raised:
        training.trainer.finish()
    assert "No space left" in str(raised.value)
    assert raised.value.steps == 3
    assert (raised.value.rows > 0) == (mode is Tracking.TOUCHED)
    assert isinstance(raised.value.__cause__, CommitError)
    disk.repair()
    training.trainer.finish()
    training.remember()
    training.check()


class NoRoomForFulls(Disk):
    """A real disk that takes deltas, but from some time on no full."""

    is_full = False

    def create(self, path: Path) -> int:
        if self.is_full and path.parent.name != DELTA_DIRECTORY:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().create(path)


def test_the_end_of_training_needs_its_deltas_only(
    start_training: StartTraining, caplog: pytest.LogCaptureFixture
) -> None:
    disk = NoRoomForFulls()
    training = start_training(disk=disk, options=EVERY_STEP)
    disk.is_full = True
    training.train(steps=5)
    position = training.trainer.finish()
    assert position is not None
    assert "full not started; the deltas hold everything" in caplog.text
    assert replay(training.run_dir, position, training.variables) == training.values()


class RoomForOneDelta(Disk):
    """A real disk that from some time on takes fulls, but only one more delta."""

    taken: set[Path] | None = None

    def create(self, path: Path) -> int:
        if self.taken is not None and path.parent.name == DELTA_DIRECTORY:
            manifests = set(path.parent.glob(f"*{MANIFEST_SUFFIX}"))
            if manifests - self.taken:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().create(path)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_end_of_training_does_not_need_a_delta_that_holds_nothing_new(
    start_training: StartTraining, caplog: pytest.LogCaptureFixture, is_resumed: bool
) -> None:
    disk = RoomForOneDelta()
    training = start_training(disk=disk)
    training.train(steps=2)
    if is_resumed:
        training.close()
        training = start_training(disk=disk)
    disk.taken = (
        set() if is_resumed else set((training.run_dir / DELTA_DIRECTORY).glob(f"*{MANIFEST_SUFFIX}"))
    )
    training.trainer.is_full_wanted = True
    position = training.trainer.finish()
    assert position is not None
    assert "full not committed; the deltas hold everything" in caplog.text
    assert "due again" not in caplog.text
    assert replay(training.run_dir, position, training.variables) == training.values()
    training.train()
    with pytest.raises(UnsavedError, match="1 step"):
        training.trainer.finish()


def test_the_end_of_training_raises_when_the_chain_is_gone_and_no_other_can_be_begun(
    start_training: StartTraining, tmp_path: Path
) -> None:
    disk = BrokenDisk()
    training = start_training(tmp_path / "run", disk=disk)
    training.train(steps=2)
    shutil.rmtree(training.run_dir)
    disk.fill()
    with pytest.raises(UnsavedError, match=r"2 steps \(\d+ touched rows\) would be lost"):
        training.trainer.finish()
    disk.repair()
    training.trainer.finish()


def test_saves_that_go_on_failing_are_logged_at_growing_intervals_and_once_when_they_work_again(
    start_training: StartTraining, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk, clock = BrokenDisk(), Clock()
    options = dataclasses.replace(BY_HAND, delta=SaveEvery(steps=1))
    training = start_training(disk=disk, clock=clock, options=options)
    disk.fill()

    def said(phrase: str) -> list[int]:
        found = [record for record in caplog.records if getattr(record, "phrase", "").startswith(phrase)]
        return [getattr(record, "fields", {}).get("failures", 1) for record in found]

    training.train(steps=100)
    assert said("delta not committed") == [1]
    clock.now += FIRST_SILENT_SECONDS
    training.train(steps=100)
    clock.now += FIRST_SILENT_SECONDS
    training.train(steps=100)
    assert said("delta not committed") == [1, 101]
    clock.now += FIRST_SILENT_SECONDS
    training.train(steps=100)
    assert said("delta not committed") == [1, 101, 301]
    disk.repair()
    training.train(steps=3)
    assert said("deltas are committed again") == [400]
    disk.fill()
    training.train()
    assert said("delta not committed") == [1, 101, 301, 1]


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
