"""Statistics of updates survive a restart, never stand in the way of one, and cost an update nothing."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hotdelta.chain import Disk, Position
from hotdelta.sanity_limits import WINDOW_UPDATES
from loader import SanitySettings
from loader.checks.kept_statistics import KEEP_SECONDS, STATISTICS_FILE, KeptStatistics, read_statistics
from loader.checks.sanity import Figures, Usual
from loader.checks.sanity_statistics import Accepted, KnownUpdates, SanityStatistics
from tests.loader.checks.test_quarantine import poison, wait_until_quarantined
from tests.loader.checks.test_sanity import node_at
from tests.loader.orders.test_order_book import DyingDisk
from tests.loader.step_model import (
    Trainer,
    answer,
    assert_serves,
    export,
    find_commit,
    move_away,
    serving,
    wait_for_position,
    wait_for_status,
)

pytestmark = pytest.mark.I6

StartTrainer = Callable[[], Trainer]
READY = Position(1, 2)
SOON = SanitySettings(min_updates=3)
CALLS_OF_A_WRITE = 6


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowDisk(Disk):
    """Waits with every write until it may go on."""

    def __init__(self) -> None:
        self.may_write = threading.Event()

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        assert self.may_write.wait(30)
        super().write_at(fd, data, offset)


class FullDisk(Disk):
    def create(self, path: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def statistics_until(seq: int, change: float = 1.0) -> SanityStatistics:
    statistics = SanityStatistics(min_updates=1)
    statistics.add(Accepted(node_at(seq), {"table": Figures(max_norm=2.0, max_change=change)}))
    return statistics


def keep(directory: Path, statistics: SanityStatistics, disk: Disk | None = None) -> None:
    directory.mkdir(exist_ok=True)
    KeptStatistics(directory, statistics, clock=Clock(), disk=disk)._write(statistics.known())


def statistics_of_a(figures: str) -> bytes:
    return (
        f'{{"format_version": 1, "until": null, "refused": [], "variables": {{"a": {{{figures}}}}}}}'.encode()
    )


def test_a_restarted_loader_knows_an_outlier(root: Path, train: StartTrainer) -> None:
    state = root / "state"
    with serving(root, sanity=SOON, state_dir=state) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        good = [trainer.train([1, 2]) for _ in range(3)][-1]
        wait_for_position(loader, good)
    # With this export there is nothing to catch up with, and so nothing else to learn from.
    export(root / "run", root / "export")
    bad = poison(trainer, 5000.0)
    with serving(root, sanity=SOON, state_dir=state) as loader:
        wait_until_quarantined(loader, bad, "times the usual")
        assert answer(loader)[1].position == good
    (state / STATISTICS_FILE).write_text("{")
    with serving(root, sanity=SOON, state_dir=state) as loader:
        wait_for_position(loader, bad)


def test_a_full_is_no_outlier_because_of_rows_that_were_always_large(root: Path, train: StartTrainer) -> None:
    """No recent update has touched such a row, but every full holds it."""
    state, run, away = root / "state", root / "run", root / "away"
    trainer = train()
    poison(trainer, 5e5)
    with serving(root, sanity=SOON, state_dir=state) as loader:
        newest = [trainer.train([1, 2]) for _ in range(WINDOW_UPDATES + 1)][-1]
        wait_for_position(loader, newest)
    hole, full = trainer.train([3]), trainer.train_full([4])
    for position in (hole, full):
        move_away(run, find_commit(run, position), away)
    with serving(root, sanity=SOON, state_dir=state) as loader:
        wait_for_position(loader, full)
        assert_serves(loader, trainer.model)


def test_what_was_released_once_does_not_let_garbage_in_for_ever(root: Path, train: StartTrainer) -> None:
    """A full has no changes to be judged by: its norms are compared with those of what is served, not of what was."""
    state, run, away = root / "state", root / "run", root / "away"
    with serving(root, sanity=SOON, state_dir=state) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        for _ in range(3):
            wait_for_position(loader, trainer.train([1, 2]))
        released = poison(trainer, 9e5)
        wait_until_quarantined(loader, released, "times the usual")
        loader.release(released)
        healthy = trainer.train()
        wait_for_position(loader, healthy)
        export(run, root / "export")
        wait_for_status(loader, lambda status: status.export_version == 2, "version 2")
    hole, full = poison(trainer, 5e5), trainer.train_full([4])
    for position in (hole, full):
        move_away(run, find_commit(run, position), away)
    with serving(root, sanity=SOON, state_dir=state) as loader:
        wait_until_quarantined(loader, full, "the largest norm of a row")
        assert answer(loader)[1].position == healthy


def test_statistics_of_another_history_are_forgotten(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    keep(root / "state", statistics_until(99))
    trainer = train()
    with serving(root, sanity=SOON, state_dir=root / "state") as loader:
        wait_for_position(loader, READY)
        for _ in range(3):
            wait_for_position(loader, trainer.train([1, 2]))
        wait_until_quarantined(loader, poison(trainer, 5000.0), "times the usual")
    assert "another history" in caplog.text


def test_a_history_that_takes_the_place_of_another_is_not_judged_by_it(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    other = Trainer(root / "other")
    for _ in range(3):
        other.train([1, 2])
    bad = poison(other, 5000.0)
    other.close()
    with serving(root, sanity=SOON) as loader:
        trainer = train()
        newest = [trainer.train([1, 2]) for _ in range(8)][-1]
        assert newest > bad
        wait_for_position(loader, newest)
        (root / "run").rename(root / "away")
        (root / "other").rename(root / "run")
        wait_until_quarantined(loader, bad, "times the usual")
        assert "another history" in caplog.text


def test_what_is_kept_is_what_is_read(tmp_path: Path) -> None:
    assert read_statistics(None) == read_statistics(tmp_path) == KnownUpdates()
    statistics = statistics_until(7)
    statistics.refuse(node_at(6))
    keep(tmp_path, statistics)
    assert read_statistics(tmp_path) == statistics.known()
    assert read_statistics(tmp_path).variables["table"].usual == Usual(2.0, 1.0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format_version": 2}',
        b'{"format_version": 1, "until": "newest", "refused": [], "variables": {}}',
        b'{"format_version": 1, "until": null, "refused": [1], "variables": {}}',
        statistics_of_a('"updates": 1e999, "max_norm": 1, "max_change": 1, "touched_share": 0'),
        statistics_of_a(f'"updates": 1, "max_norm": 1{"0" * 400}, "max_change": 1, "touched_share": 0'),
        statistics_of_a('"updates": 1, "max_norm": Infinity, "max_change": 1, "touched_share": 0'),
        statistics_of_a('"updates": 1, "max_norm": NaN, "max_change": 1, "touched_share": 0'),
        statistics_of_a('"updates": 1, "max_norm": -1, "max_change": 1, "touched_share": 0'),
        statistics_of_a('"updates": -1, "max_norm": 1, "max_change": 1, "touched_share": 0'),
        statistics_of_a('"updates": 1'),
    ],
)
def test_what_is_damaged_is_begun_afresh(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / STATISTICS_FILE).write_bytes(content)
    assert read_statistics(tmp_path) == KnownUpdates()
    assert "begun afresh" in caplog.text


@pytest.mark.parametrize("calls", range(8))
def test_a_kill_at_any_system_call_leaves_the_old_statistics_or_the_new_ones(
    tmp_path: Path, calls: int
) -> None:
    old, new = statistics_until(1), statistics_until(2)
    keep(tmp_path, old)
    dying = KeptStatistics(tmp_path, new, clock=Clock(), disk=DyingDisk(calls))
    expected = [new.known()]
    try:
        dying._write(new.known())
        assert calls >= CALLS_OF_A_WRITE
    except KeyboardInterrupt:
        expected.append(old.known())
    assert read_statistics(tmp_path) in expected


def test_they_are_written_now_and_then_and_nobody_waits_for_a_slow_disk(tmp_path: Path) -> None:
    clock, disk, statistics = Clock(), SlowDisk(), statistics_until(1)
    kept = KeptStatistics(tmp_path, statistics, clock=clock, disk=disk)
    statistics.add(Accepted(node_at(2), {}))
    kept.keep()
    assert list(tmp_path.iterdir()) == [], "too soon"
    clock.now += KEEP_SECONDS
    kept.keep()
    writing = kept._writing
    assert writing is not None
    assert not writing.done()
    statistics.add(Accepted(node_at(3), {}))
    clock.now += KEEP_SECONDS
    kept.keep()
    assert kept._writing is writing, "one at a time"
    disk.may_write.set()
    writing.result(30)
    assert read_statistics(tmp_path).until == Position(1, 2)
    kept.close()
    assert read_statistics(tmp_path).until == Position(1, 3)


def test_a_disk_that_is_full_costs_the_statistics_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(tmp_path, statistics_until(1), FullDisk())
    assert "statistics cannot be kept" in caplog.text
    assert list(tmp_path.iterdir()) == []
