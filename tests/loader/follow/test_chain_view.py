"""When the commits of a run directory were seen: each by itself, also a full that comes later than its delta."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import Kind, Position
from loader.follow import chain_view
from loader.follow.broken_links import BrokenLinks
from loader.follow.chain_view import ChainView
from tests.loader.step_model import Trainer, bring_back, commit_paths, find_commit, move_away
from tests.loader.test_bookkeeping import FakeClock

pytestmark = pytest.mark.I7


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def chain(root: Path, clock: FakeClock) -> ChainView:
    broken = BrokenLinks(root / "run", late_seconds=60, clock=clock)
    return ChainView(root / "run", broken=broken, wall_clock=clock)


@pytest.mark.parametrize("is_hinted", [True, False], ids=["hint", "poll"])
def test_a_full_is_seen_when_it_comes_whatever_is_newer(
    root: Path, tmp_path: Path, chain: ChainView, clock: FakeClock, is_hinted: bool
) -> None:
    run_dir = root / "run"
    trainer = Trainer(run_dir)
    position = trainer.train_full([1])
    full, delta = (find_commit(run_dir, position, kind) for kind in (Kind.FULL, Kind.DELTA))
    newest = find_commit(run_dir, trainer.train([2]))
    trainer.close()
    move_away(run_dir, full, tmp_path / "away")
    clock.now = 10
    chain.look()
    assert (chain.seen_at(full), chain.seen_at(delta), chain.seen_at(newest)) == (None, 10, 10)
    bring_back(run_dir, full, tmp_path / "away")
    clock.now = 20
    if is_hinted:
        chain.look_at([commit_paths(run_dir, full)[-1]])
    else:
        chain.look()
    assert (chain.seen_at(full), chain.seen_at(delta), chain.seen_at(newest)) == (20, 10, 10)


def test_what_was_seen_last_is_remembered_and_no_more(
    root: Path, chain: ChainView, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_view, "_MAX_NOTED", 2)
    trainer = Trainer(root / "run")
    chain.look()
    commits = []
    for number in range(5):
        commits.append(find_commit(root / "run", trainer.train([number])))
        clock.now = number + 1
        chain.look()
    trainer.close()
    assert [chain.seen_at(manifest) for manifest in commits] == [None, 2, 3, 4, 5]
    assert chain.seen_at(find_commit(root / "run", Position(1, 2))) is None
