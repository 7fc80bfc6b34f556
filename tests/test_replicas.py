"""How servers stand among each other, from what they say."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

from hotdelta.replicas import Replica, Standing, Verdict, find_troubles, is_in_order, judge

NOW = 1_750_000_000.0
_NUMBERS = count()


def replica(
    position: str | None, state_id: str = "aa", *, committed: float | None = None, **members: Any
) -> Replica:
    """`committed`: how many seconds ago."""
    status: dict[str, Any] = {"position": position, "state_id": state_id, "update_state": "following"}
    if committed is not None:
        time = datetime.fromtimestamp(NOW - committed, UTC).isoformat(timespec="milliseconds")
        status["last_update"] = {"position": position, "committed_at": time}
    return Replica(f"http://{next(_NUMBERS)}", status | members)


def standings(*replicas: Replica) -> list[Standing]:
    return [verdict.standing for verdict in judge(replicas, late_seconds=60)]


def test_the_newest_and_those_behind_it_are_in_order() -> None:
    verdicts = judge(
        [replica("3.2", "bb", committed=3), replica("3.10", committed=1), replica("3.10", committed=1)],
        late_seconds=60,
    )
    assert verdicts == [Verdict(Standing.BEHIND, 2.0), Verdict(Standing.NEWEST), Verdict(Standing.NEWEST)]
    assert is_in_order(verdicts)


def test_who_serves_what_is_much_older_than_the_newest_is_late_although_it_knows_of_nothing() -> None:
    far, near = replica("3.2", "bb", committed=62.5), replica("3.9", "cc", committed=61.0)
    newest = replica("3.10", committed=1.0)
    assert standings(far, near, newest) == [Standing.LATE, Standing.BEHIND, Standing.NEWEST]


def test_who_is_far_behind_what_it_knows_of_is_late_also_alone() -> None:
    assert standings(replica("3.2", seconds_behind=61.0)) == [Standing.LATE]


def test_another_state_at_one_position_is_an_alarm_for_those_who_are_not_the_most() -> None:
    three = [replica("3.2", "aa"), replica("3.2", "bb"), replica("3.2", "aa")]
    assert standings(*three) == [Standing.NEWEST, Standing.DIFFERS, Standing.NEWEST]
    assert standings(*three[:2]) == [Standing.DIFFERS, Standing.DIFFERS], "nobody knows who is right"
    assert standings(replica("3.1", "bb"), three[0]) == [Standing.BEHIND, Standing.NEWEST]


def test_other_values_of_one_state_are_an_alarm_where_they_can_be_compared() -> None:
    three = [replica("3.2", digest=f"aa-{value}") for value in ("11", "22", "11")]
    assert standings(*three) == [Standing.NEWEST, Standing.DIFFERS, Standing.NEWEST]
    uncounted, other_export = replica("3.2", digest=None), replica("3.2", digest="bb-22")
    assert standings(three[0], uncounted, other_export) == [Standing.NEWEST] * 3


def test_who_is_stuck_serves_nothing_or_does_not_answer_is_out_of_order() -> None:
    found = [replica("3.2"), replica("3.2", update_state="degraded"), replica(None), Replica("http://it")]
    assert standings(*found) == [Standing.NEWEST, Standing.STUCK, Standing.EMPTY, Standing.SILENT]
    for odd in found[1:]:
        assert not is_in_order(judge([found[0], odd], late_seconds=60))


def test_who_is_pinned_where_it_is_is_in_order_however_old_that_is() -> None:
    pinned, newest = replica("3.2", "bb", committed=500, pinned="3.2"), replica("3.10", committed=1.0)
    assert standings(pinned, newest) == [Standing.PINNED, Standing.NEWEST]
    assert is_in_order(judge([pinned, newest], late_seconds=60))
    elsewhere = replica("3.2", "bb", committed=500, pinned="3.1")
    assert standings(elsewhere, newest) == [Standing.LATE, Standing.NEWEST]


def test_who_hears_of_nothing_new_is_not_the_newest() -> None:
    store = {"address": "s3://models", "is_reached": False, "seconds_since_answer": 47.2}
    away = replica("3.10", stores=[{**store, "is_reached": True}, store])
    silent = replica("3.10", held_back={"commits": 3, "reason": "http://canary: it answers 404"})
    following = replica("3.10", held_back={"commits": 3, "reason": None}, stores=[])
    assert standings(away, silent, following) == [Standing.STUCK, Standing.STUCK, Standing.NEWEST]
    assert [find_troubles(each.status or {}) for each in (away, silent, following)] == [
        ["s3://models does not answer for 47 s"],
        ["3 commits are held back: http://canary: it answers 404"],
        [],
    ]
