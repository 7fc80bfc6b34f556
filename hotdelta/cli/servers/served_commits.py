"""The chain as a running server sees it: the newest commits, and what became of each. Its dashboard tells the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotdelta.chain import Position
from hotdelta.cli.graph import ASCII, UNICODE, draw_graph
from hotdelta.cli.output import Cell, Row, format_age, format_bytes, has_unicode, print_table
from hotdelta.cli.servers.http import ServerHttp
from hotdelta.errors import ManifestError, RequestError

_EVENTS = "/dashboard/events"
_STYLES = {"live": "bold green", "served": "", "waiting": "yellow", "skipped": "dim"}
_HEADER = ("", "position", "kind", "age", "step", "rows", "bytes", "state")

Commit = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServedPosition:
    """What a server knows of one position: of its delta, its full, or both. `state` is its own word for it."""

    node: str
    parent: str | None
    position: Position
    kinds: tuple[str, ...]
    newest: Commit
    total_bytes: int

    @property
    def has_full(self) -> bool:
        return "full" in self.kinds

    @property
    def state(self) -> str:
        return str(self.newest["state"])


def read_commits(server: ServerHttp, model: str | None) -> Sequence[Commit]:
    """The newest ones of a model, or of the only one; none when the server does not tell."""
    try:
        listed = server.first_event(_EVENTS).get("models", ())
        found = listed if len(listed) == 1 else [item for item in listed if item["name"] == model]
        return found[0].get("commits", ()) if found else ()
    except (RequestError, KeyError, TypeError, AttributeError):
        # Too many look already, or it is a server that has no dashboard: its state is told all the same.
        return ()


def positions_of(commits: Sequence[Commit]) -> list[ServedPosition]:
    """The newest first. Raises ManifestError for what is no position."""
    by_node: dict[str, list[Commit]] = {}
    for commit in commits:
        by_node.setdefault(commit["id"], []).append(commit)
    found = []
    for node, members in by_node.items():
        # The delta says what changed.
        newest = next((item for item in members if item["kind"] == "delta"), members[0])
        is_delta = newest["kind"] == "delta"
        found.append(
            ServedPosition(
                node,
                newest["parent"] if is_delta else None,
                Position.parse(newest["position"]),
                tuple(sorted((item["kind"] for item in members), reverse=True)),
                newest,
                sum(item["bytes"] for item in members),
            )
        )
    return sorted(found, key=lambda item: item.position, reverse=True)


def print_commits(commits: Sequence[Commit], limit: int | None) -> None:
    try:
        positions = positions_of(commits)[:limit]
    except (ManifestError, KeyError):
        return
    if not positions:
        return
    glyphs, now, rows = UNICODE if has_unicode(sys.stdout) else ASCII, time.time(), list[Row]()
    for position, drawn in draw_graph(positions, glyphs):
        rows.append((drawn, *[""] * 7) if position is None else _row(position, drawn, now))
    print()
    print_table(_HEADER, rows, align="lllrrrrl")


def _row(position: ServedPosition, drawn: str, now: float) -> Row:
    style = _STYLES.get(position.state, "red")
    newest = position.newest
    return (
        Cell(drawn, "yellow"),
        Cell(str(position.position), style or "yellow"),
        Cell("+".join(position.kinds), style),
        Cell(format_age(now - newest["at"]), style),
        Cell(str(newest["step"]), style),
        Cell("all" if position.kinds == ("full",) else f"{newest['rows']:,}", style),
        Cell(format_bytes(position.total_bytes), style),
        Cell(position.state, style),
    )
