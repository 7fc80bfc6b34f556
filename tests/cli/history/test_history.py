"""What became of each position, and how the forks are drawn: values alone."""

from __future__ import annotations

import pytest

from hotdelta.chain import Listing, Manifest
from hotdelta.cli.graph import ASCII, draw_graph
from hotdelta.cli.history.history import Standing, read_history
from tests.chain.manifests import delta, full

LINE = (full("1.1"), delta("1.2", "1.1"), delta("1.3", "1.2"))
FORKED_TWICE = (*LINE, delta("1.4", "1.3"), delta("2.1", "1.2"), delta("2.2", "2.1"), delta("3.1", "1.2"))


def standings(*manifests: Manifest) -> dict[str, str]:
    history = read_history(Listing(manifests))
    return {str(entry.position): str(entry.standing) for entry in history.entries}


def drawn(*manifests: Manifest) -> list[str]:
    entries = read_history(Listing(manifests)).entries
    return [
        f"{graph} {entry.position}" if entry is not None else graph
        for entry, graph in draw_graph(entries, ASCII)
    ]


def test_the_newest_position_comes_first_and_says_so() -> None:
    assert standings(*LINE) == {"1.3": "newest", "1.2": "held", "1.1": "held"}
    assert drawn(*LINE) == ["* 1.3", "* 1.2", "# 1.1"]


def test_a_full_and_the_delta_that_closes_it_are_one_entry() -> None:
    (newest, _) = read_history(Listing((full("1.1"), full("1.2", "1.1"), delta("1.2", "1.1")))).entries
    assert (newest.kind, str(newest.parent)) == ("full+delta", "1.1")


def test_what_a_later_run_forked_before_is_abandoned() -> None:
    found = standings(*FORKED_TWICE)
    assert [position for position, state in found.items() if state == Standing.ABANDONED] == [
        "2.2",
        "2.1",
        "1.4",
        "1.3",
    ]
    assert (found["3.1"], found["1.2"]) == ("newest", "held")


def test_forks_are_drawn_as_branches_that_come_together_at_their_parent() -> None:
    assert drawn(*FORKED_TWICE) == [
        "* 3.1",
        "| * 2.2",
        "| * 2.1",
        "| | * 1.4",
        "| | * 1.3",
        "|-'-'",
        "* 1.2",
        "# 1.1",
    ]


def test_a_branch_that_ends_gives_its_place_to_the_next_one() -> None:
    manifests = (*LINE, delta("2.1", "1.3"), delta("3.1", "1.2"), delta("4.1", "3.1"), delta("5.1", "1.1"))
    assert drawn(*manifests) == [
        "* 5.1",
        "| * 4.1",
        "| * 3.1",
        "| | * 2.1",
        "| | * 1.3",
        "| |-'",
        "| * 1.2",
        "|-'",
        "# 1.1",
    ]


def test_what_lies_behind_a_hole_cannot_be_reached() -> None:
    found = standings(full("1.1"), delta("1.2", "1.1"), delta("1.4", "1.3"), delta("1.5", "1.4"))
    assert found == {"1.5": "unreachable", "1.4": "unreachable", "1.2": "newest", "1.1": "held"}


@pytest.mark.parametrize("manifests", [(), (delta("1.2", "1.1"),)])
def test_without_a_full_nothing_is_the_newest(manifests: tuple[Manifest, ...]) -> None:
    assert Standing.NEWEST not in standings(*manifests).values()
