"""What a follower needs of a store, decided from values alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hotdelta.chain import FileRecord, Manifest, Position
from hotdelta.chain.format import names
from hotdelta.remote.mirror.choice import Following, Holdings, Way, choose, of_another_history, to_remove
from tests.chain.manifests import delta, full, node

MUCH = 2**40


def sized(manifest: Manifest, size: int) -> Manifest:
    index = manifest.files[0].name
    return replace(manifest, files=(FileRecord(index, size, "0" * 64, names.ROLE_INDEX),))


def line(first: int, last: int) -> list[Manifest]:
    """Deltas of run 1."""
    return [delta(f"1.{seq}", f"1.{seq - 1}") for seq in range(first, last + 1)]


def large(manifest: Manifest) -> Manifest:
    return sized(manifest, 50)


FULL = large(full("1.1"))
LATER = large(full("1.5", "1.4"))
CHAIN = [FULL, *line(2, 5), LATER, *line(6, 8)]


def show(ways: Sequence[Way]) -> list[str]:
    return [" ".join(f"{manifest.kind[0]}{manifest.position}" for manifest in way) for way in ways]


def chosen(
    following: Following,
    stored: Sequence[Manifest],
    *,
    local: Sequence[Manifest] = (),
    arriving: Sequence[Manifest] = (),
    max_bytes: int = MUCH,
) -> list[str]:
    return show(choose(following, Holdings(local, arriving, stored), max_bytes=max_bytes))


NEWCOMER = Following()


def at(position: str, *, wants_full: bool = False, pin: str | None = None) -> Following:
    return Following(node(position), Position.parse(pin) if pin else None, wants_full)


@pytest.mark.parametrize(
    "following,local,expected",
    [
        (NEWCOMER, [], ["f1.5 d1.6 d1.7 d1.8"]),
        (NEWCOMER, [FULL, *line(2, 6)], ["d1.7 d1.8"]),
        (NEWCOMER, [LATER, *line(6, 8)], []),
        (at("1.6"), [FULL, *line(2, 6)], ["d1.7 d1.8"]),
        (at("1.6"), [FULL, *line(2, 8)], []),
        (at("1.6"), [], ["d1.7 d1.8"]),
        (at("1.8"), [], []),
        (at("1.3"), [FULL, *line(2, 3)], ["d1.4 d1.5 d1.6 d1.7 d1.8"]),
    ],
    ids=["start", "restart", "restart at the newest", "next", "ahead", "from an export", "newest", "lagging"],
)
def test_the_newest_full_at_a_start_and_then_deltas(
    following: Following, local: list[Manifest], expected: list[str]
) -> None:
    assert chosen(following, CHAIN, local=local) == expected


def test_an_empty_store_asks_for_nothing() -> None:
    assert chosen(NEWCOMER, []) == []
    assert chosen(at("1.5"), []) == []


def test_a_full_when_the_next_delta_is_gone() -> None:
    assert chosen(at("1.3"), CHAIN[5:], local=[FULL, *line(2, 3)]) == ["f1.5 d1.6 d1.7 d1.8"]
    assert chosen(at("1.3"), line(6, 8), local=[FULL, *line(2, 3)]) == [], "there is none yet"


def test_a_full_when_it_is_less_to_fetch_than_the_deltas() -> None:
    deltas = [FULL, *(sized(each, 100) for each in line(2, 5)), sized(full("1.5", "1.4"), 150), *line(6, 8)]
    assert chosen(at("1.1"), deltas, local=[FULL]) == ["f1.5 d1.6 d1.7 d1.8"]
    assert chosen(at("1.4"), deltas, local=[FULL]) == ["d1.5 d1.6 d1.7 d1.8"]


def test_what_is_arriving_is_gone_on_from_although_a_newer_full_came() -> None:
    newer = [*CHAIN, large(full("1.8", "1.7"))]
    for following in (NEWCOMER, at("1.3"), at("1.3", wants_full=True)):
        assert chosen(following, newer[5:], arriving=[LATER]) == ["f1.5 d1.6 d1.7 d1.8"]
        assert chosen(following, newer[5:]) == ["f1.8"]
        assert chosen(following, newer[5:], local=[LATER, *line(6, 7)]) == ["d1.8"]
    assert chosen(at("1.8"), newer, arriving=[LATER]) == ["f1.5"], "it was due"
    assert chosen(at("1.4"), CHAIN, local=[FULL, *line(2, 4)], arriving=[LATER]) == [
        "d1.5 d1.6 d1.7 d1.8",
        "f1.5",
    ], "a live model takes deltas more easily"
    assert chosen(at("1.8"), [], local=[FULL, *line(2, 8)], arriving=[LATER]) == ["f1.5"]


FORK = [*CHAIN, delta("2.1", "1.7"), delta("2.2", "2.1")]


def test_a_fork_is_followed_by_deltas_as_long_as_an_undo_may_do() -> None:
    assert chosen(at("1.8"), FORK, local=[FULL, *line(2, 8)]) == ["d2.1 d2.2"]
    assert chosen(at("1.8"), FORK, local=[FULL, *line(2, 8), *FORK[-2:]]) == []


def test_a_full_of_the_fork_for_a_follower_that_cannot_undo() -> None:
    fork = [*FORK, full("2.2", "2.1"), delta("2.3", "2.2")]
    local = [FULL, *line(2, 8), *FORK[-2:], fork[-1]]
    assert chosen(at("1.8"), fork, local=local) == []
    assert chosen(at("1.8", wants_full=True), fork, local=local) == ["f2.2"]
    before_it = chosen(at("1.8", wants_full=True), FORK, local=[*line(2, 8), *FORK[-2:]])
    assert before_it == ["f1.5"], "one from before the fork leads there, too"


def test_a_fork_far_back_needs_its_full() -> None:
    fork = [full("2.4", "2.3"), delta("2.5", "2.4")]
    assert chosen(at("1.8"), fork, local=[LATER, *line(6, 8)]) == ["f2.4 d2.5"]


def test_a_follower_that_wants_one_gets_only_a_full_that_leads_on() -> None:
    local = [FULL, *line(2, 8)]
    assert chosen(at("1.3", wants_full=True), CHAIN, local=local) == ["f1.5"]
    assert chosen(at("1.8", wants_full=True), CHAIN, local=local) == []


def test_what_it_is_pinned_to_is_brought_and_the_rest_waits_until_it_serves() -> None:
    assert chosen(Following(pin=Position(1, 3)), CHAIN) == ["f1.1 d1.2 d1.3"]
    assert chosen(at("1.3", pin="1.3"), CHAIN, local=[FULL, *line(2, 3)]) == ["d1.4 d1.5 d1.6 d1.7 d1.8"]
    both = chosen(at("1.8", pin="1.3"), [*CHAIN, *line(9, 9)], local=[LATER, *line(6, 8)])
    assert both == ["f1.1 d1.2 d1.3", "d1.9"]


def test_another_history_is_begun_with_its_full() -> None:
    others = [full(node("1.1", "b")), delta(node("1.2", "b"), node("1.1", "b"))]
    local = [FULL, *line(2, 8)]
    assert set(show([of_another_history(local, others)])[0].split()) == {"f1.1", "d1.2"}
    assert of_another_history(local, CHAIN) == ()
    assert chosen(at("1.8"), others) == ["f1.1 d1.2"]


def test_a_name_that_another_commit_has_here_is_of_another_history() -> None:
    other = replace(delta("1.9", "1.8"), prefix=line(3, 3)[0].prefix)
    assert show([of_another_history([FULL, *line(2, 4)], [other])]) == ["d1.3"]


def test_a_newer_full_is_brought_when_there_is_more_here_than_there_may_be() -> None:
    local = [sized(each, 100) for each in (FULL, *line(2, 8))]
    stored = [*(each for each in CHAIN if each.position > Position(1, 5)), sized(full("1.5", "1.4"), 100)]
    assert chosen(at("1.8"), stored, local=local, max_bytes=1000) == []
    assert chosen(at("1.8"), stored, local=local, max_bytes=700) == ["f1.5"]
    large = [*stored[:-1], sized(full("1.5", "1.4"), 400)]
    assert chosen(at("1.8"), large, local=local, max_bytes=100) == [], "else every full would be fetched"


def test_room_is_made_by_what_is_before_the_newest_full() -> None:
    local = [sized(each, 100) for each in CHAIN]
    assert to_remove(at("1.8"), local, max_bytes=900) == ()
    assert show([to_remove(at("1.8"), local, max_bytes=850)]) == ["f1.1"]
    assert show([to_remove(at("1.8"), local, max_bytes=1)]) == ["f1.1 d1.2 d1.3 d1.4"]
    assert show([to_remove(at("1.3"), local, max_bytes=1)]) == ["f1.1 d1.2"], "the rest is before it"
    assert to_remove(NEWCOMER, local, max_bytes=1) == (), "it may be reading"


def test_room_is_made_while_a_follower_stays_where_it_is_pinned_but_not_by_what_leads_there() -> None:
    for position in ("1.3", "1.8"):
        assert show([to_remove(at(position, pin="1.3"), CHAIN, max_bytes=1)]) == ["d1.4"]
    assert show([to_remove(at("1.6", pin="1.6"), CHAIN, max_bytes=1)]) == ["f1.1 d1.2 d1.3 d1.4"]
    left = [manifest for manifest in CHAIN if manifest.position != Position(1, 4)]
    assert chosen(at("1.3", pin="1.3"), CHAIN, local=left, max_bytes=1) == [], "it is not brought again"


def test_room_is_made_by_an_abandoned_branch() -> None:
    local = [full("1.1"), *line(2, 4), delta("2.1", "1.2")]
    assert show([to_remove(at("2.1"), local, max_bytes=1)]) == ["d1.3 d1.4"]
    assert show([to_remove(at("1.4"), local, max_bytes=1)]) == ["d1.3"]
