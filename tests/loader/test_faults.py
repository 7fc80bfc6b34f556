"""Whatever is wrong on disk, the old position goes on serving bit for bit, the reason is visible, and it heals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Position, directory_of
from hotdelta.chain.format import names
from loader import Loader, State
from tests.loader.step_model import (
    StepModel,
    Trainer,
    answer,
    assert_serves,
    bring_back,
    export,
    find_commit,
    move_away,
    rewind,
    serving,
    serving_file,
    wait_for_position,
    wait_for_status,
)

pytestmark = pytest.mark.I4

StartTrainer = Callable[[], Trainer]
READY = Position(1, 2)


def snapshot(loader: Loader) -> dict[str, bytes]:
    outputs, version = answer(loader)
    return {"version": str(version).encode(), **{name: value.tobytes() for name, value in outputs.items()}}


def wait_until_degraded(loader: Loader, reason: str) -> None:
    wait_for_status(
        loader,
        lambda status: status.state is State.DEGRADED and reason in status.reason,
        f"degraded: {reason}",
    )


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_hole_keeps_the_old_position_until_the_next_full(root: Path, train: StartTrainer) -> None:
    trainer = train()
    before, missing = trainer.train([1]), trainer.train([2])
    trainer.train([3])
    move_away(root / "run", find_commit(root / "run", missing), root / "away")
    with serving(root) as loader:
        wait_until_degraded(loader, f"{missing} is missing")
        assert answer(loader)[1].position == before
        assert loader.status().seconds_behind > 0
        kept = snapshot(loader)
        trainer.train([4])
        wait_for_status(loader, lambda status: status.newest_on_disk == Position(2, 4), "the newest is seen")
        assert snapshot(loader) == kept
        wait_for_position(loader, trainer.train_full([5]))
        assert_serves(loader, trainer.model)
        status = wait_for_status(loader, lambda status: status.state is State.FOLLOWING, "following")
        assert status.last_lag is not None
        assert (status.last_lag.kind, status.deltas_since_full) == ("full", 0)
        wait_for_position(loader, trainer.train([6]))
        assert_serves(loader, trainer.model)


def test_hole_heals_when_the_missing_link_arrives(root: Path, train: StartTrainer) -> None:
    trainer = train()
    missing, newest = trainer.train([2]), trainer.train([3])
    manifest = find_commit(root / "run", missing)
    move_away(root / "run", manifest, root / "away")
    with serving(root) as loader:
        wait_until_degraded(loader, f"{missing} is missing")
        bring_back(root / "run", manifest, root / "away")
        wait_for_position(loader, newest)
        assert_serves(loader, trainer.model)


def test_damaged_delta_is_never_applied_and_heals_when_it_is_copied_again(
    root: Path, train: StartTrainer
) -> None:
    trainer = train()
    before, damaged = trainer.train([1]), trainer.train([2])
    path = serving_file(root / "run", find_commit(root / "run", damaged))
    shutil.copy(path, root / "good")
    flip_a_byte(path)
    with serving(root) as loader:
        wait_until_degraded(loader, "digest")
        assert answer(loader)[1].position == before
        (root / "good").rename(path)
        wait_for_position(loader, damaged)
        assert_serves(loader, trainer.model)


def test_damaged_delta_is_stepped_over_by_a_full(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        kept = snapshot(loader)
        damaged = trainer.train_full([2])
        wait_for_position(loader, damaged)
        assert snapshot(loader) != kept
        trainer.close()
    manifest = find_commit(root / "run", damaged)
    flip_a_byte(serving_file(root / "run", manifest))
    with serving(root) as loader:
        wait_for_position(loader, damaged)
        assert_serves(loader, trainer.model)


def test_training_shard_is_not_needed(root: Path, train: StartTrainer) -> None:
    trainer = train()
    newest = trainer.train([2])
    for manifest in (find_commit(root / "run", newest), find_commit(root / "run", Position(1, 1), Kind.FULL)):
        for file in manifest.files:
            if file.role == names.ROLE_TRAINING:
                (directory_of(root / "run", manifest.kind) / file.name).unlink()
    with serving(root) as loader:
        wait_for_position(loader, newest)
        assert_serves(loader, trainer.model)


def test_late_data_is_waited_for(root: Path, train: StartTrainer) -> None:
    trainer = train()
    newest = trainer.train([2])
    path = serving_file(root / "run", find_commit(root / "run", newest))
    path.rename(root / "late")
    with serving(root, late_data_seconds=60) as loader:
        status = wait_for_status(loader, lambda status: "cannot be read" in status.reason, "waiting for data")
        assert (status.state, status.is_ready) == (State.FOLLOWING, True)
        assert answer(loader)[1].position == READY
        (root / "late").rename(path)
        wait_for_position(loader, newest)
        wait_for_status(loader, lambda status: status.reason == "", "no reason any more")


def test_data_that_never_comes_is_called_broken_and_still_taken_when_it_comes(
    root: Path, train: StartTrainer
) -> None:
    trainer = train()
    newest = trainer.train([2])
    path = serving_file(root / "run", find_commit(root / "run", newest))
    path.rename(root / "late")
    with serving(root, late_data_seconds=0.1) as loader:
        wait_until_degraded(loader, "cannot be read")
        (root / "late").rename(path)
        wait_for_position(loader, newest)
        assert_serves(loader, trainer.model)


def fork(root: Path, train: StartTrainer, loader: Loader) -> tuple[Trainer, Position]:
    """A live loader at 2.2, and a new run that forks at 2.1; returns its trainer and its first position."""
    wait_for_position(loader, READY)
    trainer = train()
    trainer.train([1])
    wait_for_position(loader, trainer.train([7]))
    forked = rewind(trainer)
    newest = forked.train([9])
    assert find_commit(root / "run", newest).parent == find_commit(root / "run", Position(2, 1)).node
    return forked, newest


def test_fork_behind_the_live_position_is_reached_by_undo(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving(root) as loader:
        trainer, newest = fork(root, train, loader)
        wait_for_position(loader, newest)
        assert_serves(loader, trainer.model)
        assert answer(loader)[0]["users"][7, 0] == 1.0
        assert "updates undone" in caplog.text
        wait_for_position(loader, trainer.train([10]))
        assert_serves(loader, trainer.model)
        trainer.close()


@pytest.mark.parametrize("full_diff_bytes", [2**20, 0], ids=["staged", "beside"])
def test_fork_beyond_the_undo_history_is_reached_through_a_full(
    root: Path, train: StartTrainer, full_diff_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving(root, undo_bytes=0, full_diff_bytes=full_diff_bytes, slice_bytes=4096) as loader:
        trainer, newest = fork(root, train, loader)
        wait_for_position(loader, newest)
        assert_serves(loader, trainer.model)
        assert "updates undone" not in caplog.text
        wait_for_position(loader, trainer.train([10]))
        assert_serves(loader, trainer.model)
        trainer.close()


def test_model_of_another_schema_waits_for_its_export(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        kept = snapshot(loader)
        trainer = Trainer(root / "run", model=StepModel(width=8), is_resuming=False)
        newest = trainer.train()
        wait_until_degraded(loader, "schema")
        assert snapshot(loader) == kept
        export(root / "run", root / "export")
        wait_for_position(loader, newest)
        version = assert_serves(loader, trainer.model)
        assert version.export_version == 2
        trainer.close()
