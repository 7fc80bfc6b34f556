"""Keys that go: what deltas say of them, what becomes of their rows, and what a trainer that resumes knows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from hotdelta.chain.format import key_index, names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.train import DynamicTable, MostKeys, SeenTimes, SmallRows, UntouchedSeconds, UntouchedSteps
from hotdelta.train.keys.entries import EntrySweep
from tests.chain_replay import replay, values_of
from tests.train.keys.keyed_training import SLOT, Training, deleted_by
from tests.train.small_training import BrokenDisk

pytestmark = pytest.mark.I1


def test_what_is_not_trained_goes_and_its_row_is_dealt_again(tmp_path: Path) -> None:
    training = Training(tmp_path, eviction=UntouchedSteps(2))
    records = []
    for step in range(10):
        training.train([step, 1_000])
        records.append(training.save())
    # At the end of step n all go that were not trained since step n - 3.
    assert training.keys == [7, 8, 9, 1_000]
    assert [record.keys_live for record in records] == [2, 3, 4, 4, 4, 4, 4, 4, 4, 4]
    assert [record.keys_new for record in records] == [2, *[1] * 9]
    assert [record.rows_deleted for record in records] == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert deleted_by(tmp_path, training.newest()) == [6]
    # One key waits for the commit of its end, and one for the end of the step after that.
    assert [record.rows_in_use for record in records[-5:]] == [7] * 5
    training.close()


def test_a_row_that_is_dealt_again_begins_anew_with_its_slots(tmp_path: Path) -> None:
    """The same key by itself in a table of its own: rows and slots are equal, whoever had the row before."""
    training = Training(tmp_path / "one", eviction=UntouchedSteps(1))
    for step in range(12):
        training.train([step] * (step + 1))
        training.save()
    alone = Training(tmp_path / "other")
    alone.train([11] * 12)
    assert training.newest().tables["table/rows"].rows_in_use == 5
    (row,) = training.module.table.look_up([11]).numpy()
    assert np.array_equal(row, alone.module.table.look_up([11]).numpy()[0])
    assert np.array_equal(training.by_key(SLOT)[11], alone.by_key(SLOT)[11])
    training.close()
    alone.close()


def test_a_gradient_of_a_step_in_flight_meets_nobodys_row(tmp_path: Path) -> None:
    """Computed before its key goes, and applied afterwards: neither that key nor another one ever sees it."""
    training = Training(tmp_path)
    table = training.module.table
    training.train([1, 2])
    training.save()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.look_up([1], training=True)) * 1e6
    late = tape.gradient(loss, training.rows)
    table.remove([1])
    training.train([3])
    training.optimizer.apply([late], [training.rows])
    assert training.save().rows_deleted == 1
    for key in range(4, 12):
        training.train([key])
        training.save()
    alone = Training(tmp_path / "other")
    alone.train([3])
    alone.train([11])
    assert np.array_equal(table.look_up([3, 11]), alone.module.table.look_up([3, 11]))
    assert np.abs(table.items()[1]).max() < 2
    training.close()
    alone.close()


def test_keys_that_come_back_are_named_as_what_they_are(tmp_path: Path) -> None:
    training = Training(tmp_path)
    table = training.module.table
    training.train([1, 2, 3])
    assert (training.save().keys_new, training.newest().tables["table/rows"].rows_deleted) == (3, 0)
    # Gone and back within one delta; gone; and one that comes and goes within it.
    assert table.remove([1, 2, 77]) == 2
    training.train([1, 9])
    assert table.remove([9]) == 1
    record = training.save()
    assert (record.keys_live, record.keys_new, record.rows_deleted) == (2, 0, 1)
    assert deleted_by(tmp_path, training.newest()) == [2]
    training.train([2, 9])
    record = training.save()
    assert (record.keys_live, record.keys_new, record.rows_deleted) == (4, 2, 0)
    # All others are put in place of them.
    table_keys, rows = [3, 50], np.ones((2, 2), np.float32)
    training.module.table.assign(table_keys, rows)
    record = training.save()
    assert (record.keys_live, record.keys_new, record.rows_deleted) == (2, 1, 3)
    assert deleted_by(tmp_path, training.newest()) == [1, 2, 9]
    for key in range(100, 120):
        training.train([key])
        training.save()
    assert training.newest().tables["table/rows"].rows_in_use == 1 + 22
    training.close()


def test_the_least_recently_and_the_least_often_trained_go_first(tmp_path: Path) -> None:
    for least, expected in (("last_touch", [0, 7, 8, 9]), ("count", [0, 1, 2, 3])):
        training = Training(tmp_path / least, eviction=MostKeys(4, least=least))
        for step in range(10):
            training.train([0, *[step] * (10 - step)])
            training.save()
        training.train([0])
        assert len(training.keys) == 4
        assert training.keys == expected if least == "last_touch" else training.keys[:3] == expected[:3]
        training.close()


def test_small_rows_go(tmp_path: Path) -> None:
    training = Training(tmp_path, eviction=SmallRows(0.05), initializer="zeros")
    training.train([1])
    training.train([1, 2])
    training.save()
    table = training.module.table
    tf.raw_ops.ResourceScatterUpdate(
        resource=training.rows.handle, indices=table.rows_of([2]), updates=[[0.2, 0.2]]
    )
    training.writer.touch("table/rows", table.rows_of([2]).numpy())
    training.train([1])
    assert training.keys == [1]
    training.save()
    training.close()


def test_event_times_decide_and_none_are_needed_for_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, eviction=UntouchedSeconds(60))
    for key in (1, 2):
        training.train([key])
        training.save()
    assert "training tells none" in caplog.text
    training.train([3], event_time=1_000_000.0)
    training.save()
    training.train([3], event_time=1_000_061.0)
    training.save()
    # What was trained before the first event time was told counts from then on.
    assert training.keys == [1, 2, 3]
    training.train([3], event_time=1_000_122.0)
    training.save()
    training.train([3], event_time=1_000_123.0)
    assert training.keys == [3]
    training.close()


def test_a_trainer_that_resumes_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Counts and last touches included: the same keys go at the same steps."""
    policies = [UntouchedSteps(4), MostKeys(400, least="count")]

    def batch(step: int) -> list[int]:
        return [int(key) for key in np.random.default_rng(step).integers(0, 30, 3)]

    whole = Training(tmp_path / "whole", eviction=policies)
    part = Training(tmp_path / "part", eviction=policies)
    for step in range(30):
        if step % 8 == 7:
            part.close()
            part = Training(tmp_path / "part", eviction=policies)
        for training in (whole, part):
            training.train(batch(step))
            training.save()
        assert whole.keys == part.keys
        assert np.array_equal(whole.module.table.items()[1], part.module.table.items()[1])
        for name in (SLOT, "usage/table/rows"):
            one, other = whole.by_key(name), part.by_key(name)
            assert all(np.array_equal(one[key], other[key]) for key in whole.keys)
    assert len(whole.keys) < 15
    whole.close()
    part.close()


def test_policies_may_come_change_and_go_between_runs(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.train([1, 2])
    training.save()
    training.close()
    # A policy that is younger than the table knows nothing of its rows: they count as trained when it began.
    training = Training(tmp_path, eviction=UntouchedSteps(2))
    for _ in range(2):
        training.train([2])
        training.save()
    assert training.keys == [1, 2]
    training.train([2])
    assert training.keys == [2]
    training.save()
    training.close()
    training = Training(tmp_path, eviction=MostKeys(3))
    training.train([5, 6, 7])
    training.save()
    training.close()
    training = Training(tmp_path)
    training.train([8])
    training.save()
    assert training.keys == [5, 6, 7, 8]
    training.close()


def test_a_delta_that_fails_forgets_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    training.train([1, 2, 3])
    training.save()
    training.module.table.remove([1, 2])
    disk = training.writer._trainer._chain.disk
    with monkeypatch.context() as patch:
        full = BrokenDisk()
        full.fill()
        patch.setattr(disk, "create", full.create)
        training.writer.save()
    assert training.writer.status.failures == 1
    training.train([2, 4])
    record = training.save()
    assert (record.keys_live, record.keys_new, record.rows_deleted) == (3, 1, 1)
    assert deleted_by(tmp_path, training.newest()) == [1]
    training.close()


def entries_of(index: bytes) -> tuple[Any, Any]:
    return key_index.items_of(np.frombuffer(index, np.int64).reshape(-1, key_index.BUCKET_COLUMNS))


KEYS = st.lists(st.integers(0, 40), min_size=1, max_size=6)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), KEYS),
        st.tuples(st.sampled_from(["remove", "remove", "assign"]), KEYS),
        st.tuples(
            st.sampled_from(["save", "full", "cut", "cut", "commit", "copy", "break", "restart", "crash"]),
            st.just([]),
        ),
    ),
    min_size=10,
    max_size=50,
)


class History:
    """A trainer that is closed and killed now and then, and what it held at each position.

    A cut may be on its way to the disk for as long as anything else happens.
    """

    def __init__(self, run_dir: Path, admission: Any = None) -> None:
        self.run_dir = run_dir
        self._admission = admission
        self.seen: dict[Position, tuple[dict[str, bytes], list[int]]] = {}
        self._begin()

    def act(self, action: str, keys: list[int]) -> None:
        table = self.training.module.table
        match action:
            case "train":
                self.training.train(keys)
            case "remove":
                table.remove(keys)
            case "assign":
                different = sorted(set(keys))
                table.assign(different, np.ones((len(different), 2), np.float32))
            case "break":
                self._break_off()
            case "cut" | "copy":
                self._cut(with_full=action == "copy")
            case _:
                self._commit()
                self._finish(action)

    def _finish(self, action: str) -> None:
        if action in ("save", "full"):
            self.training.writer.save() if action == "save" else self.training.writer.save_full()
            self._remember(self._state())
        elif action != "commit":
            self.training.close() if action == "restart" else self.training.writer._trainer.release()
            self._begin()

    def end(self) -> None:
        self._commit()
        self.training.writer._trainer.release()

    def _begin(self) -> None:
        self.training = Training(
            self.run_dir, eviction=[UntouchedSteps(5), MostKeys(20)], admission=self._admission
        )
        self._may_commit = threading.Event()
        self._on_its_way: tuple[dict[str, bytes], list[int]] | None = None
        self._may_commit.set()
        # Cuts are taken when this history says so, and never by the thread that looks for pauses.
        self.training.writer._trainer.pauses.stop()
        disk = self.training.writer._trainer._chain.disk
        link = disk.link

        def link_when_told(source: Path, target: Path) -> None:
            assert self._may_commit.wait(60)
            link(source, target)

        vars(disk)["link"] = link_when_told
        self._remember(self._state())

    def _cut(self, *, with_full: bool) -> None:
        """Hand a cut over; a full that was copied is closed by it."""
        self._commit()
        trainer = self.training.writer._trainer
        if with_full:
            trainer.start_full()
            trainer._pipeline.wait_for_full()
        self._may_commit.clear()
        trainer.cut(is_closing=with_full)
        self._on_its_way = self._state()

    def _commit(self) -> None:
        """What is on its way arrives."""
        self._may_commit.set()
        self.training.writer._trainer.finish_full()
        if self._on_its_way is not None:
            self._remember(self._on_its_way)
        self._on_its_way = None

    def _break_off(self) -> None:
        """What a step leaves that fails after it took a row into use, and before a key has it."""
        table = self.training.module.table
        row = int(table.counts.numpy()[0])
        table._keyed.index.free.begin_dealing()
        tf.raw_ops.ResourceScatterUpdate(resource=table.rows.handle, indices=[row], updates=[[0.0, 0.0]])
        tf.raw_ops.ResourceScatterAdd(
            resource=table.counts.handle, indices=[0], updates=tf.constant([1], tf.int64)
        )
        self.training.writer.touch("table/rows", [row])

    def _state(self) -> tuple[dict[str, bytes], list[int]]:
        return values_of(self.training.variables), self.training.keys

    def _remember(self, state: tuple[dict[str, bytes], list[int]]) -> None:
        self.seen[self.training.newest().position] = state

    def check(self, manifest: Manifest) -> None:
        values, live = self.seen[manifest.position]
        found = replay(self.run_dir, manifest.position, values)
        keys, rows = entries_of(found["table/index"])
        for name in values:
            if name.startswith(names.WAITING_PREFIX) and not name.endswith(names.WAITING_COUNTS_SUFFIX):
                saved, kept = (dict(zip(*entries_of(each[name]), strict=True)) for each in (found, values))
                assert saved == kept
        assert sorted(keys.tolist()) == live
        assert len(set(rows.tolist())) == len(rows)
        for name, dtype, width in (
            ("table/rows", np.float32, 2),
            (SLOT, np.float32, 2),
            ("usage/table/rows", np.int64, 3),
        ):
            one, other = (np.frombuffer(each[name], dtype).reshape(-1, width) for each in (found, values))
            assert np.array_equal(one[rows], other[rows]), name
        record, parent = manifest.tables["table/rows"], manifest.parent
        assert record.keys_live in (None, len(live))
        if manifest.kind is Kind.DELTA and parent is not None and parent.position in self.seen:
            before = set(self.seen[parent.position][1])
            assert record.keys_new in (None, len(set(live) - before))
            assert deleted_by(self.run_dir, manifest) == sorted(before - set(live))


@settings(max_examples=6)
@given(
    actions=ACTIONS,
    stride=st.sampled_from([1, 2**20, -(2**40)]),
    admission=st.sampled_from([None, SeenTimes(2, forget_steps=4)]),
)
def test_every_position_has_the_keys_rows_and_slots_of_the_trainer(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[str, list[int]]],
    stride: int,
    admission: Any,
) -> None:
    """And its manifest says which keys came and went since its parent; and what waits is in it."""
    history = History(tmp_path_factory.mktemp("run"), admission)
    for action, numbers in actions:
        history.act(action, [number * stride for number in numbers])
    history.end()
    for manifest in Scanner(history.run_dir).scan().manifests:
        if manifest.position in history.seen:
            history.check(manifest)


def test_a_key_that_goes_while_the_delta_that_brings_it_is_written(tmp_path: Path) -> None:
    """The next delta deletes it: the one that was on its way has it."""
    history = History(tmp_path)
    for action, keys in (
        ("train", [1, 2]),
        ("save", []),
        ("train", [3]),
        ("cut", []),
        ("remove", [3]),
        ("commit", []),
        ("train", [1]),
        ("save", []),
    ):
        history.act(action, keys)
    newest = history.training.newest()
    assert deleted_by(tmp_path, newest) == [3]
    assert newest.tables["table/rows"].keys_new == 0
    history.end()


def test_rows_of_a_step_that_was_broken_off_are_dealt_again(tmp_path: Path) -> None:
    history = History(tmp_path)
    for action, keys in (("train", [1, 2]), ("save", []), ("break", []), ("save", [])):
        history.act(action, keys)
    record = history.training.newest().tables["table/rows"]
    assert (record.rows_in_use, record.keys_live, record.keys_new) == (4, None, None)
    for key in (3, 4, 5):
        history.act("train", [key])
        history.act("save", [])
    record = history.training.newest().tables["table/rows"]
    assert (record.rows_in_use, record.keys_live, record.keys_new) == (6, 5, 1)
    history.end()


def test_a_removal_waits_for_a_cut_that_is_taken_in_a_pause(tmp_path: Path) -> None:
    """Otherwise a cut would have the key in its rows, and say that it is gone."""
    training = Training(tmp_path)
    training.train([1, 2])
    training.save()
    training.train([1])
    trackers = training.writer._trainer.trackers
    inside, removed = threading.Event(), threading.Event()
    take = trackers.others.take

    def take_slowly() -> Any:
        inside.set()
        assert not removed.wait(0.3)
        return take()

    def remove() -> None:
        assert inside.wait(60)
        training.module.table.remove([2])
        removed.set()

    thread = threading.Thread(target=remove)
    thread.start()
    vars(trackers.others)["take"] = take_slowly
    record = training.save()
    thread.join(60)
    assert (removed.is_set(), record.rows_deleted, record.keys_live) == (True, 0, 2)
    del vars(trackers.others)["take"]
    assert training.save().rows_deleted == 1
    training.close()


def test_each_sweep_examines_as_many_keys_though_buckets_that_were_split_hold_fewer() -> None:
    table = DynamicTable(2, max_rows=20_000, initializer="zeros", name="table")
    for first in range(0, 13_000, 1_000):
        table.look_up(np.arange(first, first + 1_000) * 2**40, training=True)
    buckets = int(table.counts.numpy()[1])
    in_a_share = 13_000 * 1024 / buckets
    assert buckets == 2752
    sweep = EntrySweep(table._keyed.index)
    one, other, last = (sweep.next_entries(live=13_000, excess=0).keys for _ in range(3))
    assert len(one) == pytest.approx(in_a_share, rel=0.05)
    assert len(other) == pytest.approx(in_a_share, rel=0.05)
    assert not set(one.tolist()) & set(other.tolist())
    assert len({*one.tolist(), *other.tolist(), *last.tolist()}) == 13_000
