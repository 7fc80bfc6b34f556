"""The run directory as the loader sees it: what is there, what can be used, and the way from a state to the newest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hotdelta.chain import Kind, Listing, Manifest, Node, Plan, Position, Refused, Scanner, plan
from hotdelta.errors import HotdeltaError
from loader.broken_links import BrokenLinks
from loader.export_metadata import ExportMetadata
from loader.served import Origin
from loader.straight_line import plan_straight_line

_MAX_NOTED = 1000


class ChainView:
    """One look at a time; between two looks everything it says is about the same listing. One thread at a time."""

    def __init__(self, run_dir: Path, *, broken: BrokenLinks, wall_clock: Callable[[], float]) -> None:
        self.run_dir = run_dir
        self._scanner = Scanner(run_dir)
        self._broken = broken
        self._wall_clock = wall_clock
        self._scanned = Listing()
        self._seen_at: dict[Node, float] = {}
        self._full_nodes: frozenset[Node] = frozenset()

    def look(self) -> None:
        listing = self._scanner.scan()
        if listing is not self._scanned:
            now = self._wall_clock()
            self._scanned = listing
            self._note_seen(now)
            self._full_nodes = frozenset(m.node for m in listing.manifests if m.kind is Kind.FULL)

    def _note_seen(self, now: float) -> None:
        """Only what is newer than all that was noted before: older ones are not waited for."""
        if len(self._seen_at) > _MAX_NOTED:
            self._seen_at.clear()
        for manifest in reversed(self._scanned.manifests[-_MAX_NOTED:]):
            if manifest.node in self._seen_at:
                return
            self._seen_at[manifest.node] = now

    @property
    def is_empty(self) -> bool:
        return not self._scanned.manifests and not self._scanned.refused

    @property
    def newest(self) -> Position | None:
        manifests = self._scanned.manifests
        return manifests[-1].position if manifests else None

    def seen_at(self, node: Node) -> float:
        return self._seen_at.get(node, self._wall_clock())

    def plan_from(self, live: Node | None, metadata: ExportMetadata, undoable: Sequence[Node] = ()) -> Plan:
        """The way to the newest state that can be reached, around what is broken."""
        listing = self._broken.filter(self._scanned)
        schema, refused = metadata.schema.digest, listing.refused
        if metadata.is_incremental:
            straight = plan_straight_line(live, listing.manifests, schema=schema) if live else None
            return straight or plan(
                live, listing.manifests, undoable=undoable, schema=schema, refused=refused
            )
        # Deltas cannot be used, but they say where in the history the live state is.
        fulls = [m for m in listing.manifests if m.kind is Kind.FULL or m.node not in self._full_nodes]
        unusable = {m.node for m in fulls if m.kind is Kind.DELTA}
        return plan(live, fulls, schema=schema, excluded=unusable, refused=refused)

    def report_broken(self, manifest: Manifest, error: HotdeltaError) -> HotdeltaError | None:
        """Remember a failure. Returns it when it is to be retried, so that going around it is too early."""
        self._broken.add(manifest, error)
        return self._broken.late()

    def report_used(self, manifest: Manifest) -> None:
        self._broken.forget(manifest)

    @property
    def retry_reason(self) -> str:
        """What is not used yet but will be tried again soon; empty when there is nothing of the kind."""
        late = self._broken.late()
        return str(late) if late else ""

    def unusable_after(self, node: Node) -> str:
        """Why something that is newer than a state cannot be used; empty when nothing newer is known to be bad."""
        broken = self._broken.newest()
        if broken is not None and broken[0] > node.position:
            return f"{broken[0]} cannot be used: {broken[1]}"
        refused = [item for item in self._scanned.refused if item.position and item.position > node.position]
        return f"{refused[0].path.name} cannot be used: {refused[0].reason}" if refused else ""

    @property
    def refused(self) -> tuple[Refused, ...]:
        return self._scanned.refused

    def deltas_after(self, node: Node) -> int:
        """How many deltas are newer than a state; for an export that cannot take them."""
        return sum(1 for m in self._scanned.manifests if m.kind is Kind.DELTA and m.position > node.position)

    def first_after(self, node: Node) -> Manifest | None:
        """The oldest commit that is newer than a state."""
        first = None
        for manifest in reversed(self._scanned.manifests):
            if manifest.position <= node.position:
                break
            first = manifest
        return first

    def origin_of(self, node: Node) -> Origin:
        """How a state that was not reached here came about, as far as the directory tells."""
        parents = {m.node: m.parent for m in self._scanned.manifests if m.kind is Kind.DELTA}
        at: Node | None = node
        deltas = 0
        while at is not None and at not in self._full_nodes:
            at, deltas = parents.get(at), deltas + 1
        return Origin(at.position, deltas) if at is not None else Origin(None, 0)

    def origin_after(self, manifest: Manifest, before: Origin) -> Origin:
        """A full, or the delta that closes one, starts counting anew."""
        if manifest.kind is Kind.FULL or manifest.node in self._full_nodes:
            return Origin(manifest.position, 0)
        return Origin(manifest.base or before.base, before.deltas + 1)
