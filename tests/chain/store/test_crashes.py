"""Whatever happens to a trainer in the middle of a save, readers see the old state or the new one, nothing else."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Scanner
from hotdelta.chain.format import names
from hotdelta.errors import CommitError
from tests.chain.disks import CountingDisk, FailingDisk, PoweredDisk, RecordingDisk
from tests.chain.killed_writer import CHANGES, OLD_ROWS
from tests.chain.model_trainer import ModelServer, ModelTrainer
from tests.waiting import LIMIT_SECONDS

pytestmark = [pytest.mark.I3, pytest.mark.I6]

NEW_ROWS = {**OLD_ROWS, **CHANGES}
SAVES = [(Kind.DELTA,), (Kind.DELTA, Kind.FULL)]


def list_leftovers(run_dir: Path) -> set[str]:
    """Files that no manifest names and that are not the chain's own."""
    listing = Scanner(run_dir).scan()
    known = {file.name for manifest in listing.manifests for file in manifest.files}
    known |= {names.manifest_name(manifest.prefix) for manifest in listing.manifests}
    known |= {names.STATE_FILE, names.LOCK_FILE}
    files = {path.name for path in run_dir.rglob("*") if path.is_file()}
    return {name for name in files - known if not name.endswith(names.CLAIM_SUFFIX)}


def check_old_or_new(run_dir: Path) -> ModelServer:
    """A newcomer and a restart both work; the restart leaves nothing lying about, and can be followed."""
    server = ModelServer(run_dir)
    assert server.follow().problem is None
    assert server.rows in (OLD_ROWS, NEW_ROWS)
    trainer = ModelTrainer(run_dir, PoweredDisk())
    trainer.open()
    assert trainer.rows == server.rows
    trainer.save({9: 90}, Kind.DELTA, Kind.FULL)
    trainer.close()
    assert server.follow().problem is None
    assert server.rows == trainer.rows
    return server


@pytest.mark.parametrize("kinds", SAVES)
def test_kill_after_each_call_of_a_save_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, kinds: tuple[Kind, ...]
) -> None:
    command = [sys.executable, "-m", "tests.chain.killed_writer", str(tmp_path), *kinds]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3], timeout=LIMIT_SECONDS)
    outcomes = []
    run_dirs = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    for run_dir in run_dirs:
        server = ModelServer(run_dir)
        server.follow()
        outcomes.append(server.rows == NEW_ROWS)
        check_old_or_new(run_dir)
        assert list_leftovers(run_dir) == set()
    assert len(run_dirs) > 12 * len(kinds)
    assert outcomes == sorted(outcomes)
    assert outcomes[0] is False
    assert outcomes[-1] is True


@pytest.mark.parametrize("kinds", SAVES)
@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
def test_failure_of_each_call_of_a_save_is_a_commit_error_that_leaves_nothing(
    tmp_path: Path, kinds: tuple[Kind, ...], error_number: int
) -> None:
    for call in range(1, count_calls(tmp_path / "count", kinds) + 1):
        run_dir = tmp_path / str(call)
        trainer = ModelTrainer(run_dir, PoweredDisk())
        trainer.open()
        trainer.save(OLD_ROWS, Kind.FULL)
        before = Scanner(run_dir).scan().manifests
        trainer.disk = FailingDisk(call, error_number)
        error = save_and_catch(trainer, kinds)
        manifests = Scanner(run_dir).scan().manifests
        assert error is None or (error.hint and len(manifests) - len(before) < len(kinds))
        assert error is not None or len(manifests) - len(before) == len(kinds)
        assert list_leftovers(run_dir) == set()
        trainer.disk = PoweredDisk()
        trainer.save({9: 90}, Kind.DELTA)
        server = ModelServer(run_dir)
        assert server.follow().problem is None
        assert server.rows == trainer.rows
        trainer.close()


def save_and_catch(trainer: ModelTrainer, kinds: tuple[Kind, ...]) -> CommitError | None:
    """Only the state file may fail without an error: it decides nothing."""
    try:
        trainer.save(CHANGES, *kinds)
    except CommitError as error:
        return error
    return None


def count_calls(run_dir: Path, kinds: tuple[Kind, ...]) -> int:
    trainer = ModelTrainer(run_dir, PoweredDisk())
    trainer.open()
    trainer.save(OLD_ROWS, Kind.FULL)
    trainer.disk = disk = CountingDisk()
    trainer.save(CHANGES, *kinds)
    trainer.close()
    return disk.calls


@pytest.mark.parametrize("kinds", SAVES)
def test_power_loss_at_any_moment_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, kinds: tuple[Kind, ...]
) -> None:
    source = tmp_path / "run"
    trainer = ModelTrainer(source, PoweredDisk())
    trainer.open()
    trainer.save(OLD_ROWS, Kind.FULL)
    trainer.disk = disk = RecordingDisk()
    disk.adopt(source)
    trainer.save(CHANGES, *kinds)
    trainer.close()
    random_source = random.Random(7)
    for moment in range(len(disk.snapshots)):
        for attempt in range(6):
            found = tmp_path / f"found-{moment}-{attempt}"
            disk.rebuild(moment, found, source, random_source)
            check_old_or_new(found)


def test_committed_state_survives_a_power_loss_after_the_commit(tmp_path: Path) -> None:
    source = tmp_path / "run"
    trainer = ModelTrainer(source, PoweredDisk())
    trainer.open()
    trainer.save(OLD_ROWS, Kind.FULL)
    trainer.disk = disk = RecordingDisk()
    disk.adopt(source)
    trainer.save(CHANGES, Kind.DELTA)
    trainer.close()
    for attempt in range(20):
        found = tmp_path / f"found-{attempt}"
        disk.rebuild(len(disk.snapshots) - 1, found, source, random.Random(attempt))
        server = ModelServer(found)
        server.follow()
        assert server.rows == NEW_ROWS
