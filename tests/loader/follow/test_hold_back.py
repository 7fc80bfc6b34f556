"""What may not be taken yet: too young, or not served by the one ahead for long enough. Values and two clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Listing, Manifest, Node, Position, Scanner
from loader import Ahead, HoldBack, State
from tests.golden.golden_chains import golden_chain
from tests.loader.step_model import Trainer, serving, wait_for_position, wait_for_status
from tests.loader.test_bookkeeping import FakeClock

WALL = 1_750_000_000.0


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    run_dir = golden_chain("forked").copy_to(tmp_path_factory.mktemp("chain"))
    return next(m for m in Scanner(run_dir).scan().manifests if m.kind is Kind.DELTA)


def listing_of(sample: Manifest, *positions: str) -> Listing:
    return Listing(
        tuple(
            replace(sample, position=Position.parse(text), state_id=text.replace(".", "").zfill(32))
            for text in positions
        )
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def positions(hold_back: HoldBack, listing: Listing) -> list[str]:
    return [str(manifest.position) for manifest in hold_back.allowed(listing).manifests]


def node(text: str) -> Node:
    return Node(Position.parse(text), text.replace(".", "").zfill(32))


def ahead(position: str | None, *refused: str) -> Ahead:
    return Ahead(Position.parse(position) if position else None, frozenset(map(node, refused)))


def following(clock: FakeClock, seconds: float = 0.0) -> HoldBack:
    return HoldBack(seconds, has_leader=True, clock=clock, wall_clock=lambda: WALL)


def test_what_was_taken_before_a_restart_is_taken_again_while_the_one_ahead_is_silent(
    sample: Manifest, clock: FakeClock
) -> None:
    listing = listing_of(sample, "3.1", "3.2", "3.3")
    hold_back = HoldBack(60, has_leader=True, clock=clock, wall_clock=lambda: WALL, taken=Position(3, 2))
    assert positions(hold_back, listing) == ["3.1", "3.2"]
    hold_back.miss("away")
    assert positions(hold_back, listing) == ["3.1", "3.2"]
    hold_back.hear(ahead("3.3"))
    assert positions(hold_back, listing) == ["3.1", "3.2"], "3.3 it has had for no time yet"
    hold_back.hear(ahead("3.1"))
    assert positions(hold_back, listing) == [], "it was rolled back meanwhile"


def test_what_is_old_enough_by_the_clock_of_the_trainer_is_taken(sample: Manifest, clock: FakeClock) -> None:
    for age, allowed in ((59.0, []), (60.0, ["3.1"])):
        wall = sample.created_at + age
        hold_back = HoldBack(60, has_leader=False, clock=clock, wall_clock=partial(float, wall))
        assert positions(hold_back, listing_of(sample, "3.1")) == allowed


def test_a_trainer_whose_clock_is_ahead_does_not_hold_anything_back_for_longer(
    sample: Manifest, clock: FakeClock
) -> None:
    hold_back = HoldBack(
        60, has_leader=False, clock=clock, wall_clock=lambda: sample.created_at - 10_000 + clock.now
    )
    listing = listing_of(sample, "3.1")
    assert positions(hold_back, listing) == []
    clock.now = 59
    assert positions(hold_back, listing) == []
    clock.now = 60
    assert positions(hold_back, listing) == ["3.1"]


def test_nothing_is_taken_before_the_one_ahead_was_heard(sample: Manifest, clock: FakeClock) -> None:
    hold_back = following(clock)
    assert positions(hold_back, listing_of(sample, "3.1")) == []
    assert "asked" in hold_back.silent_reason


def test_it_is_followed_up_to_where_it_has_been_for_long_enough(sample: Manifest, clock: FakeClock) -> None:
    hold_back, listing = following(clock, 30), listing_of(sample, "3.1", "3.2", "3.3", "4.1")
    for now, position in ((0, "3.1"), (10, "3.2"), (20, "3.3")):
        clock.now = now
        hold_back.hear(ahead(position))
        assert positions(hold_back, listing) == []
    for now, allowed in ((30, 1), (39, 1), (40, 2), (50, 3), (500, 3)):
        clock.now = now
        hold_back.hear(ahead("3.3"))
        assert len(positions(hold_back, listing)) == allowed, now


def test_what_it_was_rolled_back_from_was_never_reached(sample: Manifest, clock: FakeClock) -> None:
    hold_back, listing = following(clock, 30), listing_of(sample, "3.1", "3.2", "3.3")
    hold_back.hear(ahead("3.1"))
    clock.now = 10
    hold_back.hear(ahead("3.3"))
    clock.now = 20
    hold_back.hear(ahead("3.1", "3.2", "3.3"))
    clock.now = 100
    assert positions(hold_back, listing) == ["3.1"]
    hold_back.hear(ahead("3.3"))
    assert positions(hold_back, listing) == ["3.1"], "the time counts anew"
    clock.now = 130
    assert positions(hold_back, listing) == ["3.1", "3.2", "3.3"]


def test_what_it_has_quarantined_is_not_taken_also_when_it_has_gone_on(
    sample: Manifest, clock: FakeClock
) -> None:
    hold_back, listing = following(clock), listing_of(sample, "3.1", "3.2", "3.3")
    hold_back.hear(ahead("3.3", "3.2"))
    assert positions(hold_back, listing) == ["3.1", "3.3"]


def test_while_it_is_silent_nothing_new_is_taken(sample: Manifest, clock: FakeClock) -> None:
    hold_back, listing = following(clock), listing_of(sample, "3.1", "3.2")
    hold_back.hear(ahead("3.1"))
    hold_back.miss("http://it: refused")
    clock.now = 1000
    assert positions(hold_back, listing) == ["3.1"]
    assert hold_back.silent_reason == "http://it: refused"
    hold_back.hear(ahead("3.2"))
    assert (positions(hold_back, listing), hold_back.silent_reason) == (["3.1", "3.2"], "")


def test_an_unchanged_listing_is_the_same_one(sample: Manifest, clock: FakeClock) -> None:
    hold_back, listing = following(clock), listing_of(sample, "3.1")
    hold_back.hear(ahead("3.1"))
    assert hold_back.allowed(listing) is listing


@pytest.fixture
def trainer(root: Path) -> Iterator[Trainer]:
    trainer = Trainer(root / "run")
    yield trainer
    trainer.close()


def test_a_replica_follows_one_that_goes_ahead_and_not_further(root: Path, trainer: Trainer) -> None:
    hold_back = HoldBack(0, has_leader=True, clock=lambda: 0.0, wall_clock=lambda: 0.0)
    with serving(root, hold_back=hold_back) as loader:
        wait_for_position(loader, Position(1, 2))
        first, second, third = (trainer.train([at]) for at in (1, 2, 3))
        held = wait_for_status(loader, lambda status: status.held_back == 5, "all are held back")
        assert (held.state, held.commits_behind, held.seconds_behind) == (State.FOLLOWING, 0, 0)
        assert held.newest_on_disk == third
        assert "asked" in held.silent_leader
        hold_back.hear(Ahead(first))
        wait_for_position(loader, first)
        status = wait_for_status(loader, lambda status: status.held_back == 2, "two are held back")
        assert (status.node and status.node.position, status.silent_leader) == (first, "")
        hold_back.hear(Ahead(third))
        wait_for_position(loader, third)
        wait_for_status(loader, lambda status: status.held_back == 0, "none is held back")
    assert second < third
