"""How several servers stand among each other, from what each says of itself. Pure: asks nobody.

Two that say the same position and mean different states, or hold different values, are an alarm: the position in their
answers does not tell what these were made with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from hotdelta.chain import Position
from hotdelta.errors import ManifestError

# What GET /model/version says.
Said = Mapping[str, Any]


def version_path(model: str | None) -> str:
    """Where a server says it, of one of several models or (None) of the only or default one."""
    return "/model/version" if model is None else f"/models/{quote(model, safe='')}/version"


def find_troubles(status: Said) -> list[str]:
    """What keeps a server from news that it cannot know of, and so is not behind of: in words."""
    found = []
    for store in status.get("stores") or ():
        if not store["is_reached"]:
            silent = store.get("seconds_since_answer")
            since = "" if silent is None else f" for {silent:.0f} s"
            found.append(f"{store['address']} does not answer{since}")
    held_back = status.get("held_back") or {}
    if held_back.get("reason"):
        found.append(f"{held_back.get('commits') or 0} commits are held back: {held_back['reason']}")
    return found


class Standing(StrEnum):
    """The best first; all but the first three want somebody to look."""

    NEWEST = "newest"
    BEHIND = "behind"
    PINNED = "pinned"
    LATE = "late"
    STUCK = "stuck"
    EMPTY = "serves nothing"
    DIFFERS = "differs"
    SILENT = "no answer"


_IN_ORDER = (Standing.NEWEST, Standing.BEHIND, Standing.PINNED)


@dataclass(frozen=True, slots=True)
class Replica:
    """A server and what it said; or, when it said nothing, why."""

    url: str
    status: Said | None = None
    problem: str = ""

    @property
    def position(self) -> Position | None:
        text = self._said("position")
        try:
            return Position.parse(text) if isinstance(text, str) else None
        except ManifestError:
            return None

    @property
    def state_id(self) -> str:
        return str(self._said("state_id"))

    @property
    def digest(self) -> tuple[str, str]:
        """What kind of model it holds, and the digest of its values; empty where it is not counted yet."""
        kind, _, value = str(self._said("digest") or "").partition("-")
        return kind, value

    @property
    def committed_at(self) -> float | None:
        """When what it serves was committed; None when that was no update of this server, but came with its export."""
        update = self._said("last_update") or {}
        if update.get("position") != self._said("position") or update.get("committed_at") is None:
            return None
        return datetime.fromisoformat(update["committed_at"]).timestamp()

    def seconds_behind(self, newest: float | None) -> float:
        """Behind what it knows of, or behind the others, whose newest commit is of that time."""
        own = self._said("seconds_behind") or 0.0
        committed = self.committed_at
        return max(own, newest - committed) if newest is not None and committed is not None else own

    def _said(self, member: str) -> Any:
        return None if self.status is None else self.status.get(member)


@dataclass(frozen=True, slots=True)
class Verdict:
    standing: Standing
    seconds_behind: float = 0.0


def judge(replicas: Sequence[Replica], *, late_seconds: float) -> list[Verdict]:
    """How each of them stands. Who serves what is older than the newest by more than `late_seconds` is late."""
    serving = [replica for replica in replicas if replica.position is not None]
    newest = max((replica.position for replica in serving if replica.position), default=None)
    times = [time for replica in serving if (time := replica.committed_at) is not None]
    odd = _find_odd(serving)
    return [_judge_one(replica, newest, max(times, default=None), odd, late_seconds) for replica in replicas]


def _judge_one(
    replica: Replica, newest: Position | None, newest_time: float | None, odd: set[str], late_seconds: float
) -> Verdict:
    if replica.status is None:
        return Verdict(Standing.SILENT)
    if replica.position is None:
        return Verdict(Standing.EMPTY)
    behind = replica.seconds_behind(newest_time)
    if replica.url in odd:
        return Verdict(Standing.DIFFERS, behind)
    if replica.status["update_state"] == "degraded" or find_troubles(replica.status):
        return Verdict(Standing.STUCK, behind)
    if replica.status.get("pinned") == str(replica.position):
        return Verdict(Standing.PINNED, behind)
    if behind > late_seconds:
        return Verdict(Standing.LATE, behind)
    return Verdict(Standing.NEWEST if replica.position == newest else Standing.BEHIND, behind)


def _find_odd(serving: Sequence[Replica]) -> set[str]:
    """Who serves another state than most at its position, or of that state other values than most."""
    states = [(replica, (replica.position,), replica.state_id) for replica in serving]
    values = [
        (replica, (replica.state_id, replica.digest[0]), replica.digest[1])
        for replica in serving
        if replica.digest[1]
    ]
    return _find_exceptions(states) | _find_exceptions(values)


def _find_exceptions(found: Sequence[tuple[Replica, tuple[object, ...], str]]) -> set[str]:
    """Of replicas of which those with an equal second item should have an equal third: who has not what most have.

    Where there is no most, nobody knows who is right, and it is all of them.
    """
    counts = Counter((group, value) for _, group, value in found)
    return {
        replica.url
        for replica, group, value in found
        if any(
            count >= counts[group, value]
            for (other_group, other), count in counts.items()
            if other_group == group and other != value
        )
    }


def is_in_order(verdicts: Sequence[Verdict]) -> bool:
    return all(verdict.standing in _IN_ORDER for verdict in verdicts)
