"""The positions of a chain, and what became of each. Pure: a listing in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

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
