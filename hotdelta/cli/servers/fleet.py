"""`hotdelta fleet URL...`: who of several servers serves what, who is behind, who differs, and who does not answer.

Two that say the same position and mean different states, or hold different values, are an alarm: the position in their
answers does not tell what these were made with.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from hotdelta.chain import Position
from hotdelta.cli.output import Cell, Row, print_json, print_table, warn
from hotdelta.cli.servers.access import Access, access_for_reading
from hotdelta.cli.servers.http import ServerHttp
from hotdelta.cli.servers.status import TIMEOUT_SECONDS, Status, read_status, show_seconds, state_of
from hotdelta.errors import ManifestError, RequestError
from hotdelta.logs import counted

_MOST_AT_ONCE = 32


class Standing(StrEnum):
    """How a server stands among the others, the best first."""

    NEWEST = "newest"
    BEHIND = "behind"
    LATE = "late"
    STUCK = "stuck"
    EMPTY = "serves nothing"
    DIFFERS = "differs"
    SILENT = "no answer"


# Of what is in order; all else is not.
_STYLES = {Standing.NEWEST: "green", Standing.BEHIND: "yellow"}
_SHOWN_DIGITS = 12
_HEADER = ("host", "position", "state id", "behind", "standing", "state")


@dataclass(frozen=True, slots=True)
class Replica:
    """A server and what it said; or, when it said nothing, why."""

    url: str
    status: Status | None = None
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


def run(options: argparse.Namespace) -> int:
    """0 when all answer, none differs, none is stuck, and none is late."""
    access = access_for_reading(options)
    urls = list(dict.fromkeys(url.rstrip("/") for url in options.urls))
    with ThreadPoolExecutor(min(len(urls), _MOST_AT_ONCE)) as pool:
        replicas = list(pool.map(lambda url: ask(url, access, options.model), urls))
    verdicts = judge(replicas, late_seconds=options.late_after)
    if options.is_json:
        print_json(_document(replicas, verdicts))
    else:
        rows = [_row(replica, verdict) for replica, verdict in zip(replicas, verdicts, strict=True)]
        print_table(_HEADER, rows, align="lllrll")
        _warn_of_odd(verdicts)
    return 0 if is_in_order(verdicts) else 1


def ask(url: str, access: Access, model: str | None) -> Replica:
    """Raises ConfigurationError when it is no server of hotdelta."""
    try:
        with ServerHttp(url, timeout_seconds=TIMEOUT_SECONDS, access=access) as server:
            return Replica(url, read_status(server, model))
    except RequestError as error:
        return Replica(url, problem=str(error))


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
    if replica.status["update_state"] == "degraded":
        return Verdict(Standing.STUCK, behind)
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


def _row(replica: Replica, verdict: Verdict) -> Row:
    standing = Cell(verdict.standing, _STYLES.get(verdict.standing, "bold red"))
    if replica.status is None:
        return (replica.url, "-", "-", "-", standing, Cell(replica.problem, "red"))
    return (
        replica.url,
        Cell(str(replica.position or "-"), "yellow"),
        replica.state_id[:_SHOWN_DIGITS] if replica.position else "-",
        show_seconds(verdict.seconds_behind),
        standing,
        state_of(replica.status),
    )


def _document(replicas: Sequence[Replica], verdicts: Sequence[Verdict]) -> Mapping[str, Any]:
    return {
        "in_order": is_in_order(verdicts),
        "servers": [
            {
                "url": replica.url,
                "standing": str(verdict.standing),
                "seconds_behind": round(verdict.seconds_behind, 3),
                "problem": replica.problem or None,
                "status": replica.status,
            }
            for replica, verdict in zip(replicas, verdicts, strict=True)
        ],
    }


def is_in_order(verdicts: Sequence[Verdict]) -> bool:
    return all(verdict.standing in _STYLES for verdict in verdicts)


def _warn_of_odd(verdicts: Sequence[Verdict]) -> None:
    number = sum(verdict.standing is Standing.DIFFERS for verdict in verdicts)
    if number:
        warn(
            f"{counted(number, 'server')} with another state at the position of others, or with other values: two "
            "trainers wrote the same run, or memory is damaged. restart the odd ones"
        )
