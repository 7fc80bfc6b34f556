"""The small policies and values of a writer: when a save is due, and what a trainer knows of its progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hotdelta.errors import ConfigurationError, ManifestError
from hotdelta.train.resume.trainer_state import MAX_STATE_BYTES, StateRegistry, TrainerState
from hotdelta.train.save.clock import COUNT_SECONDS, SaveClock
from hotdelta.train.save.progress import TrainingProgress
from hotdelta.train.save.schedule import Progress, SaveEvery
from tests.train.small_training import Clock


@pytest.mark.parametrize(
    "policy, progress, is_due",
    [
        (SaveEvery(), Progress(1e9, 10**9, 10**9, 10**9), False),
        (SaveEvery(seconds=5), Progress(4.9, 100, 100, 100), False),
        (SaveEvery(seconds=5), Progress(5.0, 0, 0, 0), True),
        (SaveEvery(steps=5), Progress(100, 4, 100, 100), False),
        (SaveEvery(steps=5), Progress(0, 7, 0, 0), True),
        (SaveEvery(epochs=1), Progress(0, 0, 1, 0), True),
        (SaveEvery(touched_rows=9), Progress(0, 0, 0, 9), True),
        (SaveEvery(seconds=5, steps=3), Progress(0, 3, 0, 0), True),
    ],
)
def test_any_one_amount_makes_a_save_due(policy: SaveEvery, progress: Progress, is_due: bool) -> None:
    assert policy.is_due(progress) is is_due


def test_a_save_clock_counts_from_the_last_save() -> None:
    now = Clock()
    clock = SaveClock(SaveEvery(steps=2, seconds=10), now, lambda: 0)
    clock.add(steps=1)
    assert not clock.is_due()
    clock.add(steps=1)
    assert clock.is_due()
    clock.restart()
    assert not clock.is_due()
    now.now += 10
    assert clock.is_due()


def test_a_save_clock_is_due_by_any_interval_and_when_training_is_put_back() -> None:
    now = Clock()
    clock = SaveClock(SaveEvery(seconds=10, steps=5), now, lambda: 0)
    clock.add(steps=4)
    assert not clock.may_be_due()
    clock.add(steps=1)
    assert clock.may_be_due()
    assert clock.is_due()
    # It was one step less than was told.
    clock.add(steps=-1)
    assert not clock.is_due()
    clock.add(steps=-5)
    assert clock.may_be_due()
    assert clock.is_due()
    assert clock.has_steps
    clock.add(steps=2)
    assert not clock.is_due()
    now.now += 10
    assert clock.may_be_due()
    assert clock.is_due()


def test_rows_are_counted_rarely_and_only_when_they_matter() -> None:
    now, counted = Clock(), []

    def count() -> int:
        counted.append(now.now)
        return 5

    SaveClock(SaveEvery(seconds=1), now, count).is_due()
    assert counted == []
    clock = SaveClock(SaveEvery(touched_rows=5), now, count)
    for _ in range(10):
        assert not clock.is_due()
    now.now += COUNT_SECONDS
    assert clock.is_due()
    assert len(counted) == 1


def test_progress_survives_as_json() -> None:
    state = TrainerState().after_steps(3).after_epoch(0).after_steps(2)
    state = state.with_registered({"reader": [1, {"a": None}], "bytes": b"\x00\xfe"})
    assert (state.step, state.epoch, state.step_in_epoch) == (5, 1, 2)
    assert TrainerState.from_json(state.to_json()) == state
    assert TrainerState.from_json(state.to_json() + b"   ") == state


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"step": 1, "epoch": 0, "step_in_epoch": 0, "registered": 3}']
)
def test_what_is_no_progress_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestError, match="trainer state"):
        TrainerState.from_json(text)


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {"a": b"x"}])
def test_a_state_that_json_cannot_hold_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigurationError, match="'reader'"):
        TrainerState(registered={"reader": value}).to_json()


def test_a_state_that_is_data_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="positions, not data"):
        TrainerState(registered={"reader": "x" * MAX_STATE_BYTES}).to_json()


def test_a_name_is_registered_once_and_restored_when_it_was_saved() -> None:
    registry = StateRegistry()
    seen: list[int] = []
    registry.register("one", lambda: 1, seen.append)
    registry.register("two", lambda: 2)
    with pytest.raises(ConfigurationError, match="registered twice"):
        registry.register("one", lambda: 1)
    assert registry.read() == {"one": 1, "two": 2}
    registry.restore({"two": 5})
    registry.restore({"one": 4})
    assert seen == [4]


@pytest.mark.parametrize(
    "tell, message",
    [
        (lambda progress: progress.state.after_steps(-1), "steps is -1"),
        (lambda progress: progress.state.after_steps(2.5), "steps is 2.5"),
        (lambda progress: progress.state.after_epoch("1"), "epoch is '1'"),
        (lambda progress: progress.see("noon"), "the watermark is 'noon'"),
        (lambda progress: progress.see(float("nan")), "the watermark is nan"),
        (lambda progress: progress.registry.register("place", 3), "'place' is registered with 3"),
        (lambda progress: progress.registry.register(3, int), "3 is registered with"),
    ],
)
def test_progress_that_cannot_be_is_refused(tell: Callable[[TrainingProgress], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tell(TrainingProgress())


def test_numbers_of_numpy_are_saved() -> None:
    progress = TrainingProgress()
    progress.see(np.float32(2.5))  # type: ignore[arg-type]
    progress.state = progress.state.after_epoch(np.int64(3)).after_steps(np.int32(2))  # type: ignore[arg-type]
    assert TrainerState.from_json(progress.read()) == TrainerState(step=2, epoch=4, step_in_epoch=2)
    assert progress.watermark == 2.5
