"""`hotdelta log DIR|URL`: the history of a chain as git log shows one, newest first; or what a server serves of it."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from hotdelta.cli.graph import ASCII, UNICODE, draw_graph
from hotdelta.cli.history.commits import entry_document
from hotdelta.cli.history.history import Entry, History, Standing, read_history
from hotdelta.cli.history.opened_chain import OpenedChain, opened_chain
from hotdelta.cli.output import (
    Cell,
    Row,
    format_age,
    format_bytes,
    has_unicode,
    print_json,
    print_table,
    warn,
)
from hotdelta.cli.servers import status
from hotdelta.cli.servers.http import is_url
from hotdelta.logs import counted

_STYLES = {
    Standing.NEWEST: "bold green",
    Standing.HELD: "",
    Standing.ABANDONED: "dim",
    Standing.UNREACHABLE: "red",
}
_HEADER = ("", "position", "kind", "age", "step", "rows", "bytes", "state")


def run(options: argparse.Namespace) -> int:
    """1 when a manifest is refused, or a hole keeps servers from the newest position."""
    if is_url(options.place):
        return status.log(options)
    with opened_chain(options.place) as chain:
        history = read_history(chain.listing)
    if options.is_json:
        print_json(_document(chain, history, options.limit))
    else:
        _print(history, options.limit)
    for refused in chain.listing.refused:
        warn(f"cannot be used: {refused.path}: {refused.reason}")
    if history.way.problem is not None:
        warn(str(history.way.problem))
    return 1 if chain.listing.refused or history.way.problem is not None else 0


def _print(history: History, limit: int | None) -> None:
    now = time.time()
    glyphs = UNICODE if has_unicode(sys.stdout) else ASCII
    rows, shown = list[Row](), 0
    for entry, drawn in draw_graph(history.entries, glyphs):
        if entry is not None and shown == limit:
            break
        shown += entry is not None
        rows.append((drawn, *[""] * 7) if entry is None else _row(entry, drawn, now))
    print_table(_HEADER, rows, align="lllrrrrl")
    fulls = [entry.full for entry in history.entries if entry.full is not None]
    deltas = [entry.delta for entry in history.entries if entry.delta is not None]
    total = sum(entry.total_bytes for entry in history.entries)
    hidden = len(history.entries) - shown
    more = f"; {counted(hidden, 'older position')} not shown" if hidden else ""
    print(
        f"\n{counted(len(fulls), 'full')}, {counted(len(deltas), 'delta')}, together {format_bytes(total)}{more}"
    )


def _row(entry: Entry, drawn: str, now: float) -> Row:
    style = _STYLES[entry.standing]
    return (
        Cell(drawn, "yellow"),
        Cell(str(entry.position), style or "yellow"),
        Cell(entry.kind, style),
        Cell(format_age(now - entry.manifest.created_at), style),
        Cell(str(entry.manifest.step), style),
        Cell(f"{entry.rows:,}", style),
        Cell(format_bytes(entry.total_bytes), style),
        Cell(_state(entry), style),
    )


def _state(entry: Entry) -> str:
    said = [] if entry.standing is Standing.HELD else [str(entry.standing)]
    forks = [str(child) for child in entry.children if child.run != entry.position.run]
    if forks:
        said.append(f"forked by {', '.join(forks)}")
    return ", ".join(said)


def _document(chain: OpenedChain, history: History, limit: int | None) -> dict[str, Any]:
    way = history.way
    return {
        "directory": chain.place,
        "newest": str(way.target) if way.target is not None else None,
        "problem": str(way.problem) if way.problem is not None else None,
        "commits": [entry_document(entry) for entry in history.entries[:limit]],
        "refused": [
            {
                "file": str(item.path),
                "position": str(item.position) if item.position else None,
                "reason": item.reason,
            }
            for item in chain.listing.refused
        ],
    }
