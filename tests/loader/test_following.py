"""A loader and a trainer on the same directories: what is trained is served."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Position
from hotdelta.errors import NotReadyError
from loader import Clocks, Loader, LoaderSettings, State
from loader.follow.lag_report import LagReport
from loader.model.state_digest import StateDigest
from tests.event_files import scalars_of
from tests.loader.step_model import (
    Trainer,
    answer,
    assert_serves,
    bring_back,
    commit_paths,
    export,
    find_commit,
    move_away,
    serving,
    wait_for_position,
    wait_for_status,
)
from tests.waiting import wait_until

StartTrainer = Callable[[], Trainer]
COMMITS = 30


@pytest.mark.I1
def test_trained_rows_are_served_without_a_reload(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, Position(1, 2))
        trainer = train()
        wait_for_position(loader, trainer.train([1, 5, 9]))
        version = assert_serves(loader, trainer.model)
        assert (version.position, version.step) == (Position(2, 1), 2)
        status = wait_for_status(loader, lambda status: status.updates == 1, "an update")
        assert status.state is State.FOLLOWING
        assert status.last_lag is not None
        assert status.last_lag.rows == 6
        assert (status.base_full, status.deltas_since_full) == (Position(1, 1), 2)
        assert status.undo_depth == 1


def test_catches_up_over_many_deltas_before_it_is_ready(root: Path, train: StartTrainer) -> None:
    trainer = train()
    newest = [trainer.train([step, step + 20]) for step in range(5)][-1]
    with serving(root) as loader:
        wait_for_status(loader, lambda status: status.is_ready, "ready")
        version = assert_serves(loader, trainer.model)
        assert version.position == newest
        assert loader.status().deltas_since_full == 6


@pytest.mark.I1
def test_the_digest_is_that_of_the_state_however_it_was_reached(root: Path, train: StartTrainer) -> None:
    def digest(loader: Loader, position: Position) -> str:
        wait_for_position(loader, position)
        found = wait_for_status(loader, lambda status: status.digest is not None, "a digest").digest
        assert found is not None
        return found

    trainer = train()
    with serving(root) as loader:
        first = digest(loader, Position(1, 2))
        middle, newest = (trainer.train(rows) for rows in ([1, 5, 9], [2, 5]))
        by_deltas = digest(loader, newest)
        assert by_deltas != first
        loader.rollback(middle)
        undone = digest(loader, middle)
        assert len({undone, first, by_deltas}) == 3
        loader.resume()
        assert digest(loader, newest) == by_deltas
    with serving(root) as again:
        assert digest(again, newest) == by_deltas


def test_later_full_in_the_same_run_is_not_loaded(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, Position(1, 2))
        trainer = train()
        closing = trainer.train_full([3])
        wait_for_position(loader, closing)
        wait_for_position(loader, trainer.train([4]))
        assert_serves(loader, trainer.model)
        status = wait_for_status(loader, lambda status: status.updates == 2, "two updates")
        assert status.last_lag is not None
        assert status.last_lag.kind == "delta"


def refusal_of(loader: Loader) -> str:
    with pytest.raises(NotReadyError) as refused:
        answer(loader)
    return str(refused.value)


def test_waits_for_the_first_export_and_says_so(root: Path, tmp_path: Path) -> None:
    (root / "export").rename(root / "later")
    with serving(root) as loader:
        status = wait_for_status(loader, lambda status: "no export" in status.reason, "reason")
        assert (status.state, status.is_ready) == (State.WAITING, False)
        # The status says it a moment earlier than an answer does.
        wait_until(lambda: "no export" in refusal_of(loader), "an answer that says so")
        (root / "later").rename(root / "export")
        wait_for_position(loader, Position(1, 2))


def test_serves_the_state_of_the_export_while_there_is_no_checkpoint(root: Path) -> None:
    (root / "run").rename(root / "later")
    with serving(root) as loader:
        status = wait_for_status(loader, lambda status: status.is_ready, "ready")
        status = wait_for_status(loader, lambda status: "no checkpoint" in status.reason, "reason")
        assert status.state is State.WAITING
        assert answer(loader)[1].position == Position(1, 2)
        (root / "later").rename(root / "run")
        wait_for_status(loader, lambda status: status.state is State.FOLLOWING, "following")


@pytest.mark.I9
def test_a_run_directory_that_vanishes_is_warned_of_with_what_to_look_for(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(root, poll_seconds=0.5) as loader:
        wait_for_position(loader, train().train())
        assert "nothing new can come" not in caplog.text
        (root / "run").rename(root / "gone")
        wait_for_status(loader, lambda status: status.state is State.WAITING, "the run directory is gone")
        wait_until(lambda: "nothing new can come" in caplog.text, "a warning")
    (warned,) = [record for record in caplog.records if "nothing new can come" in record.getMessage()]
    assert warned.levelname == "WARNING"
    assert "was the directory moved" in warned.getMessage()


def test_replaced_run_directory_is_followed(root: Path, train: StartTrainer) -> None:
    with serving(root, poll_seconds=0.5) as loader:
        trainer = train()
        wait_for_position(loader, trainer.train())
        trainer.close()
        shutil.copytree(root / "run", root / "copy")
        (root / "run").rename(root / "old")
        (root / "copy").rename(root / "run")
        trainer = train()
        wait_for_position(loader, trainer.train())
        assert_serves(loader, trainer.model)


class Listings:
    """Which directories the updater lists, as Python itself tells it.

    An audit hook cannot be taken away again, so there is one for all tests, which is told what to note.
    """

    def __init__(self) -> None:
        self._noted: list[Path] | None = None
        self._is_hooked = False

    @contextmanager
    def noted(self) -> Iterator[list[Path]]:
        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(self._hear)
        noted: list[Path] = []
        self._noted = noted
        try:
            yield noted
        finally:
            self._noted = None

    def _hear(self, happening: str, arguments: tuple[object, ...]) -> None:
        noted, is_listing = self._noted, happening in ("os.scandir", "os.listdir")
        if noted is not None and is_listing and threading.current_thread().name == "hotdelta-updater":
            noted.append(Path(str(arguments[0])))


LISTINGS = Listings()


@pytest.mark.I5
def test_a_commit_is_followed_without_listing_the_directories(root: Path, train: StartTrainer) -> None:
    with serving(root, poll_seconds=3600.0) as loader:
        trainer = train()
        wait_for_position(loader, trainer.train([1]))
        with LISTINGS.noted() as listed:
            for number in range(COMMITS):
                wait_for_position(loader, trainer.train([number]))
            assert_serves(loader, trainer.model)
            # Events of the trainer's own start may come late, each at its time.
            assert listed.count(root / "run") < COMMITS // 2
            loader.look_again()
            wait_until(lambda: root / "run" in listed, "a listing, which is noted")


def test_a_stream_of_commits_does_not_put_off_the_look_at_everything(
    root: Path, tmp_path: Path, train: StartTrainer
) -> None:
    """What only the poll can find is found while the updater is told all the time to look at something else."""
    known = find_commit(root / "run", Position(1, 2))
    newest = train().train([1])
    hidden = find_commit(root / "run", newest)
    move_away(root / "run", hidden, tmp_path / "away")
    with serving(root, poll_seconds=0.5, is_polling_only=True) as loader:
        wait_for_position(loader, Position(1, 2))
        manifest = commit_paths(root / "run", known)[-1]
        bring_back(root / "run", hidden, tmp_path / "away")

        def is_found_meanwhile() -> bool:
            loader._wake.look(manifest)
            return loader.wait_for(newest, 0.0)

        wait_until(is_found_meanwhile, "a poll")


def test_polling_alone_is_enough(root: Path, train: StartTrainer) -> None:
    with serving(root, is_polling_only=True) as loader:
        wait_for_position(loader, train().train())


def test_full_only_export_serves_fulls_and_says_that_it_cannot_take_deltas(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shutil.rmtree(root / "export")
    export(root / "run", root / "export", save_incr_model=False)
    with serving(root) as loader:
        wait_for_position(loader, Position(1, 2))
        trainer = train()
        trainer.train()
        wait_for_status(loader, lambda status: status.commits_behind == 1, "one delta is seen")
        trainer.train()
        status = wait_for_status(loader, lambda status: status.commits_behind == 2, "another one is seen")
        assert "takes fulls only" in status.reason
        assert status.node is not None
        assert status.node.position == Position(1, 2)
        assert caplog.text.count("takes fulls only") == 1
        full = trainer.train_full()
        wait_for_position(loader, full)
        assert_serves(loader, trainer.model)
    assert caplog.text.count("this export cannot take deltas") == 1


def test_ids_are_served_by_value(root: Path) -> None:
    with serving(root) as loader:
        wait_for_position(loader, Position(1, 2))
        outputs, _ = loader.predict("serving_default", {"ids": [5]})
        np.testing.assert_array_equal(outputs["users"], np.ones((1, 4), np.float32))


@pytest.mark.I7
def test_each_update_is_one_log_line_with_every_stage(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def lines() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "loader.lag"]

    with serving(root) as loader:
        # However late the first answer is, its time is in the line.
        loader._updater._report._patience_seconds = math.inf
        wait_for_position(loader, Position(1, 2))
        trainer = train()
        for number in range(1, 4):
            trainer.writer.watermark(time.time())
            wait_for_position(loader, trainer.train([1]))
            answer(loader)
            wait_until(lambda number=number: len(lines()) == number, "the log line")  # type: ignore[misc]
    assert len(lines()) == 3
    for record in lines():
        fields = record.__dict__["fields"]
        stages = {name for name in fields if name.endswith("_ms")}
        assert stages == {
            "event_to_trained_ms",
            "trained_to_committed_ms",
            "committed_to_seen_ms",
            "verify_ms",
            "stage_ms",
            "preimage_ms",
            "sanity_ms",
            "gate_wait_ms",
            "apply_ms",
            "first_served_ms",
            "total_ms",
        }
        assert record.__dict__["phrase"] == "update served"


def test_tensorboard_finds_each_update_by_its_step(root: Path, train: StartTrainer, tmp_path: Path) -> None:
    trainer = train()
    with serving(root, tensorboard_dir=tmp_path / "logs") as loader:
        wait_for_position(loader, Position(1, 2))
        for rows in ([1, 5, 9], [2]):
            wait_for_position(loader, trainer.train(rows))
        first = loader.status().step
        assert first is not None
    found = scalars_of(tmp_path / "logs")
    told = {(step, tag.removeprefix("hotdelta/update_")): value for step, tag, value in found}
    assert {step for step, _ in told} == {first - 1, first}
    assert [told[step, "rows"] for step in (first - 1, first)] == [6, 2]
    assert all(told[first, name] > 0 for name in ("bytes", "lag_seconds"))


@pytest.mark.parametrize("failing", [(StateDigest, "advance"), (LagReport, "flush_complete")])
def test_what_fails_between_two_looks_does_not_end_the_following(
    root: Path, train: StartTrainer, monkeypatch: pytest.MonkeyPatch, failing: tuple[Any, str]
) -> None:
    has_failed = threading.Event()

    def fail(*_: Any) -> None:
        has_failed.set()
        raise MemoryError

    with serving(root) as loader:
        wait_for_position(loader, Position(1, 2))
        with monkeypatch.context() as patched:
            patched.setattr(*failing, fail)
            trainer = train()
            wait_for_position(loader, trainer.train([1]))
            wait_until(has_failed.is_set, "the failure")
            wait_for_position(loader, trainer.train([2]))
        wait_until(lambda: loader.status().digest is not None, "a digest")
        assert_serves(loader, trainer.model)


def test_unexpected_failure_degrades_and_does_not_end_the_following(root: Path, train: StartTrainer) -> None:
    class FailingClock:
        is_failing = False

        def __call__(self) -> float:
            if self.is_failing:
                raise ZeroDivisionError
            return time.time()

    clock = FailingClock()
    settings = LoaderSettings(export_dir=root / "export", checkpoint_dir=root / "run", poll_seconds=0.1)
    loader = Loader(settings, clocks=Clocks(wall=clock))
    loader.start()
    try:
        wait_for_position(loader, Position(1, 2))
        answer(loader)
        clock.is_failing = True
        trainer = train()
        newest = trainer.train()
        wait_for_status(loader, lambda status: "ZeroDivisionError" in status.reason, "degraded")
        outputs, version = answer(loader)
        assert version.position <= newest
        assert (outputs["users"] == version.step).all()
        clock.is_failing = False
        wait_for_position(loader, trainer.train())
        assert_serves(loader, trainer.model)
    finally:
        clock.is_failing = False
        loader.stop()
