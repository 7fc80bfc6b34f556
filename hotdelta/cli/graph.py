"""The lines that connect the positions of a chain, as `git log --graph` draws them. Pure: entries in, text out."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What the graph is drawn with."""

    commit: str
    full: str
    line: str
    start: str
    across: str
    end: str
    turn: str


class Drawn(Protocol):
    """What a graph is drawn of: something with an identity, that of its parent, and perhaps a full."""

    @property
    def node(self) -> Hashable: ...

    @property
    def parent(self) -> Hashable | None: ...

    @property
    def has_full(self) -> bool: ...


AnyDrawn = TypeVar("AnyDrawn", bound=Drawn)

UNICODE = Glyphs(commit="●", full="◆", line="│", start="├", across="─", end="╯", turn="┴")
ASCII = Glyphs(commit="*", full="#", line="|", start="|", across="-", end="'", turn="'")


def draw_graph(entries: Sequence[AnyDrawn], glyphs: Glyphs) -> Iterator[tuple[AnyDrawn | None, str]]:
    """A line for each entry, newest first; and, without an entry, the lines on which branches come together."""
    lanes: list[Hashable | None] = []
    for entry in entries:
        mine = [lane for lane, node in enumerate(lanes) if node == entry.node]
        if len(mine) > 1:
            yield None, _join(lanes, mine, glyphs)
        lane = mine[0] if mine else _free_lane(lanes)
        mark = glyphs.full if entry.has_full else glyphs.commit
        yield (
            entry,
            " ".join(
                mark if at == lane else glyphs.line if node is not None and at not in mine else " "
                for at, node in enumerate(lanes)
            ).rstrip(),
        )
        for ended in mine[1:]:
            lanes[ended] = None
        lanes[lane] = entry.parent
        while lanes and lanes[-1] is None:
            lanes.pop()


def _free_lane(lanes: list[Hashable | None]) -> int:
    """Of a tip: nothing follows it, so no line comes from above."""
    if None in lanes:
        return lanes.index(None)
    lanes.append(None)
    return len(lanes) - 1


def _join(lanes: Sequence[Hashable | None], mine: Sequence[int], glyphs: Glyphs) -> str:
    first, last = mine[0], mine[-1]
    drawn = ""
    for lane, node in enumerate(lanes):
        if lane == first:
            drawn += glyphs.start
        elif lane in mine:
            drawn += glyphs.end if lane == last else glyphs.turn
        elif node is not None:
            drawn += glyphs.line
        else:
            drawn += glyphs.across if first < lane < last else " "
        drawn += glyphs.across if first <= lane < last else " "
    return drawn.rstrip()
