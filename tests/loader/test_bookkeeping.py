"""What the loader remembers: pre-images within a budget, broken links until they change, and the lag of an update."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Kind, Listing, Node, Position
from hotdelta.errors import ConfigurationError, DamagedError, HotdeltaError
from hotdelta.logs import event
from loader import LoaderSettings
from loader.follow.broken_links import BrokenLinks
from loader.lag import Stopwatch, TableChange, lag_of
from loader.model.served import Origin
from loader.model.undo_history import MAX_ENTRIES, UndoEntry, UndoHistory
from tests.loader.follow.test_short_plans import manifest_of
from tests.loader.step_model import commit_paths, find_commit


def node(seq: int) -> Node:
    return Node(Position(1, seq), f"{seq:032x}")


def entry(seq: int, size: int) -> UndoEntry:
    return UndoEntry(node(seq), seq, Origin(None, 0), {"rows": np.zeros(size, np.uint8)})


class TestUndoHistory:
    def test_oldest_entries_make_way_for_the_budget(self) -> None:
        history = UndoHistory(100)
        for seq in range(1, 5):
            history.push(entry(seq, 40))
        assert history.nodes == (node(3), node(4))
        assert history.bytes == 80

    def test_entry_beyond_the_budget_empties_it(self) -> None:
        history = UndoHistory(100)
        history.push(entry(1, 40))
        history.push(entry(2, 101))
        assert (len(history), history.bytes) == (0, 0)

    def test_tiny_entries_are_counted_too(self) -> None:
        history = UndoHistory(2**40)
        for seq in range(1, MAX_ENTRIES + 11):
            history.push(entry(seq, 1))
        assert (len(history), history.bytes, history.nodes[0]) == (MAX_ENTRIES, MAX_ENTRIES, node(11))

    def test_way_back_is_newest_first_and_dropped_when_it_was_taken(self) -> None:
        history = UndoHistory(1000)
        for seq in range(1, 5):
            history.push(entry(seq, 10))
        entries = history.back_to(node(2))
        assert [item.node for item in entries] == [node(4), node(3), node(2)]
        history.drop(entries)
        assert history.nodes == (node(1),)
        assert history.bytes == 10
        with pytest.raises(LookupError):
            history.back_to(node(4))

    def test_what_an_order_led_back_from_does_not_come_before(self) -> None:
        history = UndoHistory(1000)
        for seq in (3, 4, 11, 6, 7):
            history.push(entry(seq, 10))
        assert history.before(node(8)) == [node(7), node(6)]
        assert history.before(node(7)) == []
        assert UndoHistory(1000).before(node(8)) == []


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def damaged(*, retryable: bool) -> HotdeltaError:
    return DamagedError("damaged", path=Path("x"), position="1.2", retryable=retryable)


class TestBrokenLinks:
    manifest = manifest_of(Kind.DELTA, node(2), node(1))
    listing = Listing((manifest,))

    def test_late_data_becomes_broken_after_a_while(self, tmp_path: Path) -> None:
        clock = FakeClock()
        broken = BrokenLinks(tmp_path, late_seconds=5, clock=clock)
        broken.add(self.manifest, damaged(retryable=True))
        assert broken.late() is not None
        assert broken.filter(self.listing) == self.listing
        clock.now = 5
        broken.add(self.manifest, damaged(retryable=True))
        assert broken.late() is None
        filtered = broken.filter(self.listing)
        assert filtered.manifests == ()
        assert filtered.refused[0].reason == "damaged"
        assert filtered.refused[0].position == Position(1, 2)

    def test_late_data_that_nobody_asks_for_again_becomes_broken_too(self, tmp_path: Path) -> None:
        clock = FakeClock()
        broken = BrokenLinks(tmp_path, late_seconds=5, clock=clock)
        broken.add(self.manifest, damaged(retryable=True))
        clock.now = 5
        assert broken.filter(self.listing).manifests == ()
        assert broken.late() is None

    def test_damage_is_final_at_once_and_forgotten_with_its_manifest(self, tmp_path: Path) -> None:
        broken = BrokenLinks(tmp_path, late_seconds=5, clock=FakeClock())
        broken.add(self.manifest, damaged(retryable=False))
        assert broken.filter(self.listing).manifests == ()
        assert broken.filter(Listing()) == Listing()
        assert broken.filter(self.listing) == self.listing

    def test_a_failure_is_remembered_without_what_was_at_hand(self, tmp_path: Path) -> None:
        broken = BrokenLinks(tmp_path, late_seconds=5, clock=FakeClock())
        at_hand: list[weakref.ref[object]] = []

        def fail() -> None:
            values = np.zeros(1)
            at_hand.append(weakref.ref(values))
            try:
                raise OSError("out of memory")
            except OSError as error:
                raise damaged(retryable=False) from error

        try:
            fail()
        except HotdeltaError as error:
            broken.add(self.manifest, error)
        assert [kept.message for _, kept in broken.final] == ["damaged"]
        assert at_hand[0]() is None


@pytest.mark.I7
def test_lag_line_names_every_stage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    watch = Stopwatch(clock)
    for stage in ("verify", "stage", "preimage", "gate_wait", "apply"):
        with watch.measure(stage):
            clock.now += 0.5
    manifest = manifest_of(Kind.DELTA, node(2), node(1))
    lag = lag_of(
        tmp_path,
        manifest,
        watch,
        seen_at=10.0,
        applied_at=12.5,
        changes=[TableChange("items", manifest.rows_changed)],
    )
    lag.log()
    (record,) = [record.__dict__ for record in caplog.records if record.name == "loader.lag"]
    fields = record["fields"]
    assert fields["position"] == Position(1, 2)
    for name in ("verify_ms", "stage_ms", "preimage_ms", "gate_wait_ms", "apply_ms"):
        assert fields[name] == 500.0
    assert {"step", "rows", "bytes", "kind"} <= set(fields)
    assert record["phrase"] == "update applied"


@pytest.mark.I7
def test_a_commit_was_there_when_it_was_seen(root: Path) -> None:
    manifest = find_commit(root / "run", Position(1, 2))
    path = commit_paths(root / "run", manifest)[-1]
    changed_at = path.stat().st_ctime
    for seen_at, expected in (
        (changed_at - 5, changed_at - 5),
        (changed_at + 5, changed_at),
        (None, changed_at),
    ):
        lag = lag_of(
            root / "run", manifest, Stopwatch(FakeClock()), seen_at=seen_at, applied_at=0, changes=[]
        )
        assert lag.committed_at == expected


def test_settings_out_of_bounds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="poll_seconds is 0"):
        LoaderSettings(export_dir=tmp_path, checkpoint_dir=tmp_path, poll_seconds=0)


def test_a_name_with_a_line_break_is_no_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    event(logging.getLogger("test"), logging.WARNING, "found", path=Path("a\nERROR"), name="\udcff")
    told = [record.getMessage() for record in caplog.records if record.name == "test"]
    assert told == [r'found path="a\nERROR" name="\udcff"']


def test_an_error_quotes_no_more_than_can_be_told() -> None:
    error = DamagedError("x" * 1_000_000, path=Path("a"), position="1.1", hint="wait")
    assert len(str(error)) < 10_000
    assert str(error).endswith("wait")
