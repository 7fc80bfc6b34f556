"""What the updater says of manifests that cannot be used: once each, and it remembers only what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain.format import names
from loader.follow.broken_links import BrokenLinks
from loader.follow.chain_view import ChainView
from loader.follow.lag_report import LagReport
from loader.model.gate import Gate
from loader.model.served import Serving
from loader.model.undo_history import UndoHistory
from loader.observation import MAX_REFUSED, Observation
from loader.status import Condition, State


def never() -> float:
    return 0.0


@pytest.fixture
def chain(tmp_path: Path) -> ChainView:
    broken = BrokenLinks(tmp_path, late_seconds=1, clock=never)
    return ChainView(tmp_path, broken=broken, wall_clock=never)


@pytest.fixture
def observation(chain: ChainView) -> Observation:
    serving = Serving(Gate(), wall_clock=never, on_first_served=lambda: None)
    return Observation(serving=serving, chain=chain, history=UndoHistory(0), report=LagReport(never))


def put(directory: Path, number: int, content: str) -> Path:
    path = directory / f"{names.FULL_STEM}{number}{names.MANIFEST_SUFFIX}"
    path.write_text(content)
    return path


def test_each_is_told_once_and_again_when_it_has_another_reason_or_was_gone(
    tmp_path: Path, chain: ChainView, observation: Observation, caplog: pytest.LogCaptureFixture
) -> None:
    def count_told() -> int:
        chain.look()
        observation.tell_refused()
        told = caplog.text.count("manifest cannot be used")
        caplog.clear()
        return told

    path = put(tmp_path, 1, "{}")
    put(tmp_path, 2, "{}")
    assert [count_told(), count_told()] == [2, 0]
    path.write_text("[]  ")
    assert [count_told(), count_told()] == [1, 0]
    path.unlink()
    assert count_told() == 0
    put(tmp_path, 1, "[]  ")
    assert count_told() == 1


def test_nothing_is_remembered_of_what_is_gone(
    tmp_path: Path, chain: ChainView, observation: Observation
) -> None:
    for number in range(50):
        path = put(tmp_path, number, "{}")
        chain.look()
        observation.tell_refused()
        path.unlink()
    chain.look()
    observation.tell_refused()
    assert not observation._told


def test_the_status_lists_some_of_very_many(
    tmp_path: Path, chain: ChainView, observation: Observation
) -> None:
    for number in range(MAX_REFUSED + 5):
        put(tmp_path, number, "{}")
    chain.look()
    observation.observe(Condition(State.FOLLOWING))
    assert len(observation.observed.refused) == MAX_REFUSED
