"""A loop of its own is saved between its steps, also while it waits for data."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import ConfigurationError
from hotdelta.train import DeltaWriter
from hotdelta.train.rows.cut import Cut
from tests.train.cut_loop import CutLoop
from tests.waiting import wait_until

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

ROWS = 30
FEWEST_STEPS = 25


class SlowCounter:
    """Two tables and a variable that say how many steps were made; a step writes one after the other, slowly."""

    def __init__(self, run_dir: Path, **options: Any) -> None:
        self.tables = {name: tf.Variable(tf.zeros([ROWS, 1])) for name in ("one", "two")}
        self.other = tf.Variable(0.0)
        model = {**self.tables, "other": self.other}
        self.writer = DeltaWriter(
            run_dir, model, None, **{"save_incremental_secs": None, **options}, tables=self.tables
        )
        self.steps = 0

    def write(self) -> None:
        self.steps += 1
        for table in self.tables.values():
            table.scatter_update(tf.IndexedSlices([[float(self.steps)]], [self.steps % ROWS]))
            time.sleep(0.001)
        self.other.assign(float(self.steps))

    def step(self) -> None:
        with self.writer.training_step(bookmark=self.steps + 1):
            self.write()


def counted_steps(cut: Cut, state: dict[str, Any]) -> dict[str, float]:
    facts: dict[str, float] = {"cut": cut.step, "progress": state["step"]}
    facts |= {"bookmark": state["bookmark"]} if "bookmark" in state else {}
    facts |= {
        block.variable.key: float(np.max(np.asarray(block.rows))) for block in cut.blocks if len(block.ids)
    }
    return facts | {key: float(value) for key, value in cut.values.items() if key == "other"}


def torture(run_dir: Path, *, cuts: int, is_watched: bool) -> CutLoop:
    """Until there were `cuts` of enough steps: in a pause in which this thread stands still there are any number."""
    counter, random = SlowCounter(run_dir), np.random.default_rng(0)
    with counter.writer, CutLoop(counter.writer._trainer, counted_steps, is_watched=is_watched) as loop:
        while (loop.cuts < cuts or len(loop.steps) <= FEWEST_STEPS) and (is_watched or not loop.mixed):
            counter.step()
            time.sleep(0.01 * random.random())
    return loop


def test_no_cut_of_a_loop_mixes_two_steps(tmp_path: Path) -> None:
    loop = torture(tmp_path, cuts=500, is_watched=True)
    assert loop.mixed == []
    assert loop.cuts >= 500
    assert len(loop.steps) > FEWEST_STEPS


@pytest.mark.soak
def test_no_cut_of_thousands_mixes_two_steps(tmp_path: Path) -> None:
    assert torture(tmp_path, cuts=5000, is_watched=True).mixed == []


def test_without_the_protocol_cuts_are_mixed(tmp_path: Path) -> None:
    assert torture(tmp_path, cuts=5000, is_watched=False).mixed


def committed_steps(run_dir: Path) -> list[int]:
    found = Scanner(run_dir).scan().manifests
    return [manifest.step for manifest in found if manifest.kind is Kind.DELTA]


def test_what_a_loop_trained_is_committed_while_it_waits(tmp_path: Path) -> None:
    counter = SlowCounter(tmp_path, save_incremental_secs=0.2)
    with counter.writer:
        for _ in range(10):
            counter.step()
        wait_until(lambda: committed_steps(tmp_path)[-1:] == [10], lambda: committed_steps(tmp_path))
        before = len(committed_steps(tmp_path))
        time.sleep(0.7)
        assert len(committed_steps(tmp_path)) == before, "nothing was trained since"


def test_nothing_is_saved_in_the_middle_of_a_step(tmp_path: Path) -> None:
    counter = SlowCounter(tmp_path, save_incremental_secs=0.05)
    with counter.writer:
        counter.step()
        wait_until(lambda: committed_steps(tmp_path)[-1:] == [1], "the first step is saved")
        with counter.writer.training_step():
            counter.write()
            time.sleep(0.5)
            assert committed_steps(tmp_path)[-1] == 1
        wait_until(lambda: committed_steps(tmp_path)[-1:] == [2], "the second is saved when it is over")


def test_a_step_that_raises_is_not_counted_and_saves_go_on(tmp_path: Path) -> None:
    counter = SlowCounter(tmp_path, save_incremental_secs=0.05)
    with counter.writer:
        with pytest.raises(ZeroDivisionError), counter.writer.training_step():
            raise ZeroDivisionError
        counter.step()
        wait_until(lambda: committed_steps(tmp_path)[-1:] == [1], lambda: committed_steps(tmp_path))


class HeldDisk(Disk):
    """Links nothing while it is held: a write is in flight for as long as a test likes."""

    def __init__(self) -> None:
        self.is_free = threading.Event()
        self.is_free.set()
        self.is_waiting = threading.Event()

    def link(self, source: Path, target: Path) -> None:
        if not self.is_free.is_set():
            self.is_waiting.set()
            assert self.is_free.wait(300)
        super().link(source, target)


def test_a_save_that_waits_for_a_write_begins_when_that_ends(tmp_path: Path) -> None:
    counter = SlowCounter(tmp_path, save_incremental_steps=1)
    disk = HeldDisk()
    counter.writer._trainer._chain.disk = disk
    with counter.writer:
        disk.is_free.clear()
        counter.step()
        assert disk.is_waiting.wait(60)
        counter.step()
        counter.step()
        assert committed_steps(tmp_path) == []
        disk.is_free.set()
        wait_until(lambda: committed_steps(tmp_path) == [1, 3], lambda: committed_steps(tmp_path))


def test_a_loop_that_does_not_say_when_its_steps_begin_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counter = SlowCounter(tmp_path, save_incremental_secs=0.1)
    with counter.writer, caplog.at_level(logging.WARNING):
        counter.write()
        counter.writer.step()
        wait_until(lambda: "saves that are due wait for the next step" in caplog.text, "it is said")
        assert "training_step()" in caplog.text
        assert committed_steps(tmp_path) == []
        counter.write()
        counter.writer.step()
        wait_until(lambda: committed_steps(tmp_path) == [2], "it is saved with the next step")


def test_state_given_to_the_writer_is_in_the_first_commit(tmp_path: Path) -> None:
    with SlowCounter(tmp_path, state={"reader": lambda: "start"}).writer:
        pass
    with SlowCounter(tmp_path).writer as writer:
        assert writer.resumed is not None
        assert (writer.resumed.step, writer.resumed.state) == (0, {"reader": "start"})


def test_bookmarks_of_a_loop_are_resumed(tmp_path: Path) -> None:
    with (counter := SlowCounter(tmp_path)).writer as writer:
        counter.step()
        counter.write()
        writer.step(bookmark=["part-7", "11"], event_time=1700000000.5)
    assert Scanner(tmp_path).scan().manifests[-1].watermark == 1700000000.5
    with SlowCounter(tmp_path).writer as writer:
        assert writer.resumed is not None
        assert writer.resumed.bookmark == ["part-7", "11"]


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="state is"):
        SlowCounter(tmp_path, state="reader")
