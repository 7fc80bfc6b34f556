from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import (
    ApplyDelta,
    Manifest,
    Node,
    Plan,
    Position,
    Refused,
    RestoreFull,
    UndoTo,
    plan,
)
from hotdelta.errors import HoleError, SchemaError
from tests.chain.manifests import OTHER_SCHEMA, SCHEMA, delta, full, node

CHAIN = [full("1.1"), delta("1.2", "1.1"), delta("1.3", "1.2")]
AT_TIP = [*CHAIN, delta("2.1", "1.3"), delta("2.2", "2.1")]
FORK = [*CHAIN, delta("2.1", "1.2"), delta("2.2", "2.1")]


def describe(found: Plan) -> str:
    """A plan in one line, to compare with: undo, full and delta with the position of each."""
    words = []
    for step in found.steps:
        match step:
            case ApplyDelta(manifest):
                words.append(f"delta {manifest.position}")
            case RestoreFull(manifest):
                words.append(f"full {manifest.position}")
            case UndoTo(to):
                words.append(f"undo {to.position}")
    return ", ".join(words)


@pytest.mark.parametrize(
    "live,manifests,undoable,expected",
    [
        pytest.param(None, [], [], "", id="nothing is there"),
        pytest.param(None, CHAIN, [], "full 1.1, delta 1.2, delta 1.3", id="a newcomer starts from the full"),
        pytest.param("1.1", CHAIN, [], "delta 1.2, delta 1.3", id="a follower takes the deltas"),
        pytest.param("1.3", CHAIN, [], "", id="at the tip there is nothing to do"),
        pytest.param(
            "1.2",
            [*CHAIN, full("1.4", "1.3"), delta("1.4", "1.3")],
            [],
            "delta 1.3, delta 1.4",
            id="a follower never needs a full",
        ),
        pytest.param(
            None, [*CHAIN, full("1.3", "1.2")], [], "full 1.3", id="a newcomer takes the newest full"
        ),
        pytest.param(
            "1.3", [*CHAIN, full("1.3", "1.2")], [], "", id="a full of the live node changes nothing"
        ),
        pytest.param("1.2", AT_TIP, [], "delta 1.3, delta 2.1, delta 2.2", id="a run at the tip is followed"),
        pytest.param("1.2", FORK, [], "delta 2.1, delta 2.2", id="a fork ahead is taken at the fork"),
        pytest.param(
            "1.3",
            FORK,
            ["1.2", "1.1"],
            "undo 1.2, delta 2.1, delta 2.2",
            id="a fork behind is reached by undo",
        ),
        pytest.param(
            "1.3",
            FORK,
            ["1.1"],
            "undo 1.1, delta 1.2, delta 2.1, delta 2.2",
            id="undo may go further back than the fork",
        ),
        pytest.param(
            "1.3", FORK, [], "full 1.1, delta 1.2, delta 2.1, delta 2.2", id="without undo it takes the full"
        ),
        pytest.param(
            "1.3",
            [*FORK, full("2.2", "2.1")],
            [],
            "full 2.2",
            id="the newest full of the new run is the shortest way",
        ),
        pytest.param(
            "1.1",
            [full("1.1"), delta("1.3", "1.2"), full("1.4", "1.3"), delta("1.5", "1.4")],
            [],
            "full 1.4, delta 1.5",
            id="a full steps over a hole",
        ),
        pytest.param(
            "1.1",
            [*CHAIN, delta("2.1", "1.2"), delta("2.3", "2.2")],
            [],
            "delta 1.2, delta 2.1",
            id="before a hole it goes as far as is safe",
        ),
        pytest.param(
            "1.2",
            [*CHAIN, delta("2.2", "2.1")],
            [],
            "",
            id="a run whose first link is missing may have abandoned what is left of the old one",
        ),
        pytest.param(
            "7.3", [full("9.1"), delta("9.2", "9.1")], [], "full 9.1, delta 9.2", id="retention passed it by"
        ),
        pytest.param("7.3", CHAIN, [], "full 1.1, delta 1.2, delta 1.3", id="the directory was replaced"),
        pytest.param(
            "1.3", [full("2.1")], [], "full 2.1", id="a run that starts anew is reached by its full"
        ),
        pytest.param(
            "2.2",
            [*FORK, delta("3.1", "1.2")],
            ["2.1", "1.2"],
            "undo 1.2, delta 3.1",
            id="a fork passes over a whole run",
        ),
        pytest.param("1.1", [*CHAIN, full("1.4", "1.3", schema=OTHER_SCHEMA)], [], "delta 1.2, delta 1.3"),
    ],
)
def test_plan_leads_to_the_newest_state_in_reach(
    live: str | None, manifests: list[Manifest], undoable: list[str], expected: str
) -> None:
    start = node(live) if live else None
    found = plan(start, manifests, undoable=[node(text) for text in undoable], schema=SCHEMA)
    assert describe(found) == expected


@pytest.mark.parametrize(
    "live,manifests",
    [(None, []), ("1.3", CHAIN), ("1.1", CHAIN), (None, CHAIN), ("1.3", FORK), ("2.2", AT_TIP)],
)
def test_plan_that_reaches_the_tip_has_no_problem(live: str | None, manifests: list[Manifest]) -> None:
    assert plan(node(live) if live else None, manifests).problem is None


def test_state_of_the_same_position_but_another_id_goes_through_a_full() -> None:
    found = plan(node("1.3", "other"), CHAIN)
    assert describe(found) == "full 1.1, delta 1.2, delta 1.3"
    assert found.target == node("1.3")
    assert describe(plan(node("1.2", "other"), CHAIN)) == "full 1.1, delta 1.2, delta 1.3"


@pytest.mark.parametrize("is_folded_first", [True, False])
@pytest.mark.parametrize(
    "live,is_line_whole,expected,parent",
    [
        pytest.param("1.2", True, "delta 1.3, delta 1.4, delta 1.5", "1.2", id="from within, by the links"),
        pytest.param("1.2", False, "full 1.1, delta 1.4, delta 1.5", "1.1", id="or through a full"),
        pytest.param("1.1", False, "delta 1.4, delta 1.5", "1.1", id="from before it, over it"),
    ],
)
def test_of_two_deltas_to_one_state_the_one_that_leads_there_is_taken(
    live: str, is_line_whole: bool, expected: str, parent: str, is_folded_first: bool
) -> None:
    """A directory has both when links of a spool came back from the store as the delta that they were folded into."""
    line = CHAIN if is_line_whole else CHAIN[:1]
    both = [delta("1.4", "1.1"), delta("1.4", "1.3")]
    manifests = [*line, *(both if is_folded_first else reversed(both)), delta("1.5", "1.4")]
    found = plan(node(live), manifests, undoable=[])
    assert describe(found) == expected
    (first, *_) = [step for step in found.steps if isinstance(step, ApplyDelta)]
    assert first.manifest.parent == node(parent)


def test_hole_is_named_with_the_link_that_wants_it() -> None:
    found = plan(node("1.1"), [full("1.1"), delta("1.3", "1.2"), delta("1.4", "1.3")])
    assert isinstance(found.problem, HoleError)
    assert (found.problem.missing, found.problem.wanted_by) == ("1.2", "1.3")
    assert found.problem.retryable
    assert found.steps == ()


def test_deltas_without_a_full_are_a_hole_for_a_newcomer() -> None:
    found = plan(None, [delta("1.2", "1.1"), delta("1.3", "1.2")])
    assert isinstance(found.problem, HoleError)
    assert (found.problem.missing, found.problem.wanted_by) == ("1.1", "1.2")


def test_hole_says_why_its_manifest_was_refused() -> None:
    refused = Refused(Path("run/x.manifest.json"), "it has format_version 9", Position(1, 2))
    found = plan(node("1.1"), [full("1.1"), delta("1.3", "1.2")], refused=[refused])
    assert "format_version 9" in str(found.problem)


def test_only_refused_manifests_are_a_hole() -> None:
    found = plan(None, [], refused=[Refused(Path("run/x.manifest.json"), "manifest is not JSON")])
    assert isinstance(found.problem, HoleError)
    assert "not JSON" in str(found.problem)


def test_abandoned_branch_without_a_way_out_asks_for_a_full() -> None:
    found = plan(node("1.3"), [delta("1.3", "1.2"), delta("2.1", "1.2")])
    assert found.steps == ()
    assert isinstance(found.problem, HoleError)
    assert found.problem.missing == "a full of run 2"
    assert found.problem.wanted_by == "1.3"


def test_abandoned_branch_is_never_the_target() -> None:
    manifests = [*CHAIN, full("1.9", "1.8"), delta("2.1", "1.2"), delta("2.3", "2.2")]
    assert plan(None, manifests).target == node("2.1")
    assert plan(node("1.2"), manifests).target == node("2.1")


def test_plan_never_moves_backwards() -> None:
    manifests = [*CHAIN, delta("2.2", "2.1")]
    found = plan(node("1.3"), manifests, undoable=[node("1.2")])
    assert found.steps == ()
    assert isinstance(found.problem, HoleError)


def test_live_state_that_vanished_from_its_own_history_stays() -> None:
    found = plan(node("1.4"), CHAIN, undoable=[node("1.3")])
    assert found.steps == ()
    assert isinstance(found.problem, HoleError)
    assert found.problem.missing == "1.4"


def test_live_state_whose_manifest_is_refused_stays() -> None:
    refused = [Refused(Path("run/x.manifest.json"), "it cannot be read", Position(1, 4))]
    assert plan(node("1.4"), CHAIN, refused=refused).steps == ()


def test_excluded_node_is_passed_only_by_a_full() -> None:
    excluded = [node("1.2")]
    found = plan(node("1.1"), CHAIN, excluded=excluded)
    assert found.steps == ()
    assert isinstance(found.problem, HoleError)
    assert (found.problem.missing, found.problem.wanted_by) == ("1.2", "1.3")
    assert "excluded" in str(found.problem)
    stepped_over = plan(node("1.1"), [*CHAIN, full("1.3", "1.2")], excluded=excluded)
    assert describe(stepped_over) == "full 1.3"


def test_excluded_full_is_not_used() -> None:
    manifests = [*CHAIN, full("1.3", "1.2")]
    assert describe(plan(None, manifests, excluded=[node("1.3")])) == "full 1.1, delta 1.2"


def test_undo_never_goes_to_an_excluded_node() -> None:
    found = plan(node("1.3"), FORK, undoable=[node("1.2"), node("1.1")], excluded=[node("1.2")])
    assert found.steps == ()


def test_newer_run_of_another_schema_is_named_and_not_followed() -> None:
    manifests = [*CHAIN, full("2.1", schema=OTHER_SCHEMA), delta("2.2", "2.1", schema=OTHER_SCHEMA)]
    found = plan(node("1.2"), manifests, schema=SCHEMA)
    assert describe(found) == "delta 1.3"
    assert isinstance(found.problem, SchemaError)
    assert (found.problem.expected, found.problem.found) == (SCHEMA, OTHER_SCHEMA)


def test_link_of_another_schema_within_a_run_is_named() -> None:
    found = plan(node("1.2"), [*CHAIN, delta("1.4", "1.3", schema=OTHER_SCHEMA)], schema=SCHEMA)
    assert describe(found) == "delta 1.3"
    assert isinstance(found.problem, SchemaError)


def test_a_part_goes_from_its_own_schema_on_to_that_of_a_whole() -> None:
    manifests = [*CHAIN, delta("2.1", "1.3", schema=OTHER_SCHEMA)]
    found = plan(node("1.2"), manifests, schema=SCHEMA, wholes=[OTHER_SCHEMA])
    assert (describe(found), found.problem) == ("delta 1.3, delta 2.1", None)


def test_directory_of_another_schema_only_gives_no_steps() -> None:
    found = plan(None, CHAIN, schema=OTHER_SCHEMA)
    assert found.steps == ()
    assert isinstance(found.problem, SchemaError)


def test_long_chains_are_planned_without_recursion() -> None:
    manifests = [full("1.1"), *(delta(f"1.{seq}", f"1.{seq - 1}") for seq in range(2, 10_001))]
    assert len(plan(None, manifests).steps) == 10_000
    assert plan(node("1.9999"), manifests).target == Node(Position(1, 10_000), node("1.10000").state_id)
