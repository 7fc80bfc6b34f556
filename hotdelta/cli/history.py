"""The positions of a chain, what became of each, and the lines that connect them. Pure: a listing in, values out."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from hotdelta.chain import Kind, Listing, Manifest, Node, Plan, Position, plan
from hotdelta.chain.history.lineage import Lineage, trace_lineage


class Standing(StrEnum):
    """NEWEST: where a server that starts now gets to; HELD: it can get there; ABANDONED: a later run forked before it;

    UNREACHABLE: no full leads there.
    """

    NEWEST = "newest"
    HELD = "held"
    ABANDONED = "abandoned"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Entry:
    """One node of the chain: its full, its delta or both, and what follows it directly."""

    node: Node
    full: Manifest | None
    delta: Manifest | None
    children: tuple[Position, ...]
    standing: Standing

    @property
    def manifest(self) -> Manifest:
        """The delta when there is one: it says what changed."""
        found = self.delta or self.full
        if found is None:
            raise ValueError("an entry has a manifest")
        return found

    @property
    def position(self) -> Position:
        return self.node.position

    @property
    def parent(self) -> Node | None:
        return self.manifest.parent if self.delta is not None else None

    @property
    def has_full(self) -> bool:
        return self.full is not None

    @property
    def kind(self) -> str:
        return "+".join(str(m.kind) for m in (self.full, self.delta) if m is not None)

    @property
    def rows(self) -> int:
        """Those that changed; of a full alone, all that it has."""
        if self.delta is not None:
            return self.delta.rows_changed
        return sum(table.stored_shape[0] for table in self.manifest.tables.values())

    @property
    def total_bytes(self) -> int:
        return sum(m.total_bytes for m in (self.full, self.delta) if m is not None)


@dataclass(frozen=True, slots=True)
class History:
    """The entries, newest first, and how a server that starts now would go."""

    entries: tuple[Entry, ...]
    way: Plan


def read_history(listing: Listing) -> History:
    by_node: dict[Node, dict[Kind, Manifest]] = {}
    children: dict[Node, list[Position]] = {}
    for manifest in listing.manifests:
        kinds = by_node.setdefault(manifest.node, {})
        kinds[manifest.kind] = manifest
        if manifest.kind is Kind.DELTA and manifest.parent is not None:
            children.setdefault(manifest.parent, []).append(manifest.position)
    way = plan(None, listing.manifests, refused=listing.refused)
    newest_run = max((node.position.run for node in by_node), default=0)
    lineage = trace_lineage(newest_run, listing.manifests)
    standings = _find_standings(by_node, lineage, way.target)
    entries = [
        Entry(
            node, kinds.get(Kind.FULL), kinds.get(Kind.DELTA), tuple(children.get(node, ())), standings[node]
        )
        for node, kinds in by_node.items()
    ]
    return History(tuple(sorted(entries, key=lambda entry: entry.position, reverse=True)), way)


def _find_standings(
    by_node: Mapping[Node, Mapping[Kind, Manifest]], lineage: Lineage, target: Node | None
) -> dict[Node, Standing]:
    reached: set[Node] = set()
    found: dict[Node, Standing] = {}
    # A parent comes before its child.
    for node in sorted(by_node, key=lambda node: node.position):
        delta = by_node[node].get(Kind.DELTA)
        if Kind.FULL in by_node[node] or (delta is not None and delta.parent in reached):
            reached.add(node)
        if node == target:
            found[node] = Standing.NEWEST
        elif not lineage.has(node.position):
            found[node] = Standing.ABANDONED
        else:
            found[node] = Standing.HELD if node in reached else Standing.UNREACHABLE
    return found


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
