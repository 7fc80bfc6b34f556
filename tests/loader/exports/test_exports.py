"""New versions of the export appear while the old one serves."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotdelta.chain import Position
from hotdelta.errors import NotReadyError
from hotdelta.signatures import METADATA_FILE
from loader import Loader, LoaderSettings, State
from loader.exports import swap as export_swap
from loader.exports.versions import list_versions
from loader.model.live_model import LiveModel
from tests.loader.step_model import (
    Trainer,
    answer,
    assert_serves,
    export,
    serving,
    wait_for_position,
    wait_for_status,
)
from tests.waiting import LIMIT_SECONDS, wait_until

StartTrainer = Callable[[], Trainer]
LOADING = "export 1: it is being loaded"


class LateLoads:
    """Loads models: `at_once` of them without delay, the others when `may_load` is set. `loaded`: which, in order."""

    def __init__(self, *, at_once: int) -> None:
        self.may_load = threading.Event()
        self.loaded: list[Path] = []
        self._at_once = at_once

    def __call__(self, path: Path, *, predict_threads: int) -> LiveModel:
        if len(self.loaded) >= self._at_once:
            assert self.may_load.wait(LIMIT_SECONDS)
        self.loaded.append(path)
        return LiveModel.load(path, predict_threads=predict_threads)


@contextmanager
def filtered(logger: logging.Logger, hear: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """`hear` is called with every line of a logger."""
    logger.addFilter(hear)
    try:
        yield
    finally:
        logger.removeFilter(hear)


def copy_version(root: Path, number: int) -> None:
    shutil.copytree(root / "export" / "1", root / "copy")
    (root / "copy").rename(root / "export" / str(number))


@pytest.mark.I2
def test_new_export_takes_over_while_predictions_go_on(root: Path, train: StartTrainer) -> None:
    stop, failures = threading.Event(), []
    with serving(root) as loader:
        wait_for_position(loader, Position(1, 2))

        def predict() -> None:
            newest = Position(1, 1)
            # Now and then: a thread that never rests makes an export, and the load of it, take many times as long.
            while not stop.wait(0.001):
                position = answer(loader)[1].position
                if position < newest:
                    failures.append(f"{position} after {newest}")
                newest = position

        reader = threading.Thread(target=predict)
        reader.start()
        trainer = train()
        trainer.train([1])
        export(root / "run", root / "export")
        trainer.train([2])
        wait_for_status(loader, lambda status: status.export_version == 2, "version 2")
        wait_for_position(loader, trainer.train([3]))
        stop.set()
        reader.join(LIMIT_SECONDS)
        assert failures == []
        assert_serves(loader, trainer.model)


def test_whoever_asks_while_the_first_export_is_loaded_is_told_so_until_it_answers(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    late = LateLoads(at_once=0)
    told: list[tuple[bool, str]] = []

    def ask() -> None:
        status = loader.status()
        told.append((status.is_ready, status.reason))

    def ask_with_the_line(_: logging.LogRecord) -> bool:
        ask()
        return True

    loader = Loader(LoaderSettings(root / "export", root / "run"), after_swap=ask, load_model=late)
    # The line is the first thing that happens after answers can be given.
    with filtered(export_swap.logger, ask_with_the_line):
        loader.start()
        try:
            wait_for_status(loader, lambda status: status.reason == LOADING, "it says what it does")
            with pytest.raises(NotReadyError, match=LOADING):
                answer(loader)
            assert loader.resume() is None
            late.may_load.set()
            wait_for_position(loader, Position(1, 2))
            wait_until(lambda: len(told) == 2, "it was asked twice")
        finally:
            late.may_load.set()
            loader.stop()
    assert told == [(False, LOADING), (True, "")]


def test_a_newer_export_does_not_take_the_place_of_the_first_one_while_that_is_loaded(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", export_swap.logger.name)
    late = LateLoads(at_once=0)
    with serving(root, load_model=late) as loader:
        wait_for_status(loader, lambda status: status.reason == LOADING, "the load of version 1")
        copy_version(root, 2)
        late.may_load.set()
        wait_for_status(loader, lambda status: status.export_version == 2, "version 2")
    served = [line for line in caplog.messages if line.startswith("serving export")]
    assert len(served) == 2, served
    assert late.loaded == [root / "export" / "1", root / "export" / "2"]


def test_older_export_is_caught_up_before_it_takes_over(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        trainer = train()
        newest = trainer.train([1])
        wait_for_position(loader, newest)
        copy_version(root, 5)
        status = wait_for_status(loader, lambda status: status.export_version == 5, "version 5")
        assert status.node is not None
        assert status.node.position == newest
        assert_serves(loader, trainer.model)


@pytest.mark.parametrize("is_incremental", [True, False], ids=["incremental", "fulls only"])
def test_a_full_that_comes_while_an_export_is_loaded_makes_no_third_model(
    root: Path, is_incremental: bool
) -> None:
    late = LateLoads(at_once=1)
    versions = root / "export"
    if not is_incremental:
        shutil.rmtree(versions)
        export(root / "run", versions, save_incr_model=False)
    with serving(root, full_diff_bytes=0, load_model=late) as loader:
        wait_for_position(loader, Position(1, 2))
        copy_version(root, 2)
        wait_until(lambda: loader._updater._exports.is_loading, "the load of version 2")
        trainer = Trainer(root / "run", is_resuming=False)
        full = trainer.train_full()
        wait_for_status(loader, lambda status: "newer export is being loaded" in status.reason, "the wait")
        late.may_load.set()
        status = wait_for_status(loader, lambda status: status.export_version == 2, "version 2")
        wait_for_position(loader, full)
        trainer.close()
        assert_serves(loader, trainer.model)
    assert status.node is not None
    assert late.loaded == [versions / "1", versions / "2"]


def test_an_export_that_vanishes_while_it_is_loaded_is_in_nobodys_way(root: Path) -> None:
    late = LateLoads(at_once=1)
    with serving(root, load_model=late) as loader:
        wait_for_position(loader, Position(1, 2))
        copy_version(root, 2)
        exports = loader._updater._exports
        wait_until(lambda: exports.is_loading, "the load of version 2")
        (root / "export" / "2").rename(root / "gone")
        wait_until(lambda: not exports.is_loading, "nobody wants version 2")
        late.may_load.set()


def test_export_that_cannot_reach_the_live_position_has_to_wait(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        trainer = train()
        newest = trainer.train([1])
        wait_for_position(loader, newest)
        (root / "run").rename(root / "gone")
        copy_version(root, 5)
        wait_for_status(loader, lambda status: status.state is State.WAITING, "the run directory is gone")
        assert answer(loader)[1].export_version == 1
        assert answer(loader)[1].position == newest
        (root / "gone").rename(root / "run")
        wait_for_status(loader, lambda status: status.export_version == 5, "version 5")


def test_bad_export_is_reported_and_skipped_and_tried_again_when_it_changes(
    root: Path, caplog: object
) -> None:
    bad = root / "export" / "7"
    shutil.copytree(root / "export" / "1", bad)
    (bad / "saved_model.pb").write_bytes(b"not a model")
    with serving(root) as loader:
        wait_for_status(loader, lambda status: status.export_version == 1, "version 1")
        shutil.copy(root / "export" / "1" / "saved_model.pb", bad / "saved_model.pb")
        wait_for_status(loader, lambda status: status.export_version == 7, "version 7")


def test_unusable_export_alone_is_named_as_the_reason(root: Path) -> None:
    (root / "export" / "1" / METADATA_FILE).unlink()
    with serving(root) as loader:
        status = wait_for_status(loader, lambda status: METADATA_FILE in status.reason, "the reason")
        assert (status.state, status.is_ready) == (State.WAITING, False)


def test_only_plain_numbers_are_versions(tmp_path: Path) -> None:
    for name in ("1", "12", "3", "x", "-4", "1.5", ".tmp-export-9", "٣"):
        (tmp_path / name).mkdir()
    (tmp_path / "99").touch()
    assert [version.number for version in list_versions(tmp_path)] == [12, 3, 1]
    assert list_versions(tmp_path / "missing") == []


def test_a_link_that_leads_to_itself_hides_no_export(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "7").symlink_to("7")
    assert [version.number for version in list_versions(tmp_path)] == [1]
