"""`hotdelta tail URL`: each update of a running server with its lag, as it comes. Ends by Ctrl-C, or after N updates.

A terminal gets one table that refreshes; everything else a line for each update, which is written when its lag is known
or another update has followed it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

from hotdelta.cli.output import Cell, Row, format_bytes, format_rows, rich_table, warn
from hotdelta.cli.servers.http import ServerHttp
from hotdelta.cli.servers.status import (
    Status,
    open_server,
    read_status,
    show_behind,
    show_ms,
    state_of,
)
from hotdelta.errors import RequestError
from hotdelta.terminal import has_style

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_INTERRUPTED = 130
# How often an update that nobody has asked for yet is looked at again before it is shown without an answer.
_PATIENCE_POLLS = 3
_SHOWN_UPDATES = 20

# The name of a column, and of which members of lag_ms it is the sum.
_STAGES = (
    ("train", ("event_to_trained",)),
    ("commit", ("trained_to_committed",)),
    ("see", ("fetch", "committed_to_seen")),
    ("ready", ("verify", "stage", "preimage", "sanity")),
    ("gate", ("gate_wait",)),
    ("apply", ("apply", "probe")),
    ("served", ("committed_to_served",)),
)
# As many as fit a terminal of 80 columns. The last one has what is rare.
_HEADER = ("position", "rows", "bytes", *(name for name, _ in _STAGES), "")
_ALIGN = "lrr" + "r" * len(_STAGES) + "l"
_WIDTHS = (8, 9, 7, *(6 for _ in _STAGES), 0)

Update = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """An update, and how many others were applied since the one before that were never looked at."""

    update: Update
    missed: int = 0

    @property
    def is_served(self) -> bool:
        return self.update.get("first_served_at") is not None

    def is_same(self, other: Update) -> bool:
        names = ("position", "kind", "applied_at")
        return all(self.update.get(name) == other.get(name) for name in names)


class Feed:
    """Turns the states of a server, one after the other, into the updates between them."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._pending: Seen | None = None
        self._polls = 0

    def see(self, status: Status) -> Iterator[Seen]:
        """Those that are finished: they were served, another one followed, or nobody has asked for long."""
        update, count = status.get("last_update"), status.get("updates", 0)
        if update is not None:
            if self._pending is not None and self._pending.is_same(update):
                self._pending = Seen(update, self._pending.missed)
                self._polls += 1
            elif self._count is None or count != self._count:
                yield from self.flush()
                self._pending, self._polls = Seen(update, self._find_missed(count)), 1
            if self._pending is not None and (self._pending.is_served or self._polls >= _PATIENCE_POLLS):
                yield from self.flush()
        self._count = count

    def flush(self) -> Iterator[Seen]:
        pending, self._pending = self._pending, None
        if pending is not None:
            yield pending

    def _find_missed(self, count: int) -> int:
        """A server that was started again counts from 0."""
        return 0 if self._count is None or count < self._count else count - self._count - 1


class View(Protocol):
    def show(self, status: Status | None, problem: str) -> None:
        """What the server says now, or why it says nothing."""

    def add(self, seen: Seen) -> None: ...

    def close(self) -> None: ...


def run(options: argparse.Namespace) -> int:
    stop = threading.Event()
    view: View = JsonView() if options.is_json else TableView() if has_style(sys.stdout) else LineView()
    with open_server(options.url, options) as server:
        try:
            follow(
                server,
                view,
                options.updates,
                wait=lambda: stop.wait(options.interval),
                model=options.model,
            )
        except KeyboardInterrupt:
            # This is how one stops looking: no word of it, and nothing half written.
            return EXIT_INTERRUPTED
        finally:
            view.close()
    return 0


def follow(
    server: ServerHttp, view: View, limit: int | None, *, wait: Callable[[], object], model: str | None = None
) -> None:
    """Raises RequestError, ConfigurationError when the server does not answer the first time."""
    feed, left = Feed(), limit
    status: Status | None = read_status(server, model)
    while True:
        if status is not None:
            for seen in feed.see(status):
                view.add(seen)
                if left is not None and (left := left - 1) == 0:
                    return
            view.show(status, "")
        wait()
        try:
            status = read_status(server, model)
        except RequestError as error:
            status = None
            view.show(None, error.message)


class LineView:
    """A line for each update, and one when the server falls silent and when it is back."""

    def __init__(self) -> None:
        self._has_header = False
        self._is_lost = False

    def show(self, status: Status | None, problem: str) -> None:
        if (status is None) != self._is_lost:
            self._is_lost = status is None
            warn(problem if self._is_lost else "the server answers again")

    def add(self, seen: Seen) -> None:
        if not self._has_header:
            self._print(_HEADER)
            self._has_header = True
        self._print([cell.text if isinstance(cell, Cell) else cell for cell in row_of(seen)])

    def close(self) -> None: ...

    def _print(self, cells: tuple[str, ...] | list[str]) -> None:
        padded = (
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(cells, _WIDTHS, _ALIGN, strict=True)
        )
        print(format_rows((), [["  ".join(padded)]], align="l"), flush=True)


class JsonView(LineView):
    """A JSON document in a line for each update: `last_update` of the server, and `missed`."""

    def add(self, seen: Seen) -> None:
        print(json.dumps({**seen.update, "missed": seen.missed}), flush=True)


class TableView:
    """One table that refreshes, under what the server says of itself now."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows: deque[Row] = deque(maxlen=_SHOWN_UPDATES)
        self._head: list[Cell] = []
        self._live = Live(console=Console(file=stream), auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def show(self, status: Status | None, problem: str) -> None:
        if status is None:
            self._head = [Cell(problem, "red")]
        else:
            self._head = [
                Cell(status.get("position") or "nothing yet", "bold yellow"),
                state_of(status),
                Cell(f"behind: {show_behind(status)}"),
            ]
        self._live.update(self._rendered(), refresh=True)

    def add(self, seen: Seen) -> None:
        self._rows.append(row_of(seen))
        self._live.update(self._rendered(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _rendered(self) -> RenderableType:
        from rich.console import Group

        head = rich_table((), [self._head], "l" * len(self._head)) if self._head else ""
        return Group(head, "", rich_table(_HEADER, list(self._rows), _ALIGN, gap=1))


def row_of(seen: Seen) -> Row:
    update = seen.update
    rare = [update["kind"]] if update["kind"] != "delta" else []
    if seen.missed:
        rare.append(f"+{seen.missed:,}")
    return (
        Cell(update["position"], "yellow"),
        f"{update['rows']:,}",
        format_bytes(update["bytes"]),
        *(_stage(update.get("lag_ms", {}), members) for _, members in _STAGES),
        ", ".join(rare),
    )


def _stage(lag_ms: Mapping[str, float | None], members: tuple[str, ...]) -> str:
    known = [value for name in members if (value := lag_ms.get(name)) is not None]
    return show_ms(sum(known)) if known else "-"
