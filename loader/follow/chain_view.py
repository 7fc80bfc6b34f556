"""The run directory as the loader sees it: what is there, what can be used, and the way from a state to the newest."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from hotdelta.chain import ApplyDelta, Kind, Listing, Manifest, Node, Plan, Position, Refused, Scanner, plan
from hotdelta.errors import HotdeltaError, SanityError, SchemaError
from hotdelta.export_metadata import ExportMetadata
from hotdelta.logs import event
from loader.checks.quarantine import Quarantine
from loader.follow.broken_links import BrokenLinks
from loader.follow.hold_back import HoldBack
from loader.follow.schema_fit import SchemaFit
from loader.follow.short_plans import plan_straight_line, plan_to
from loader.model.served import Origin
from loader.standing_orders import Orders
from loader.status import Quarantined
from loader.update_figures import BAD_VALUES, ROLLED_BACK, UpdateFigures, cause_of

logger = logging.getLogger(__name__)

_MAX_NOTED = 1000


class ChainView:
    """One look at a time; between two looks everything it says is about the same listing. One thread at a time."""

    def __init__(
        self,
        run_dir: Path,
        *,
        broken: BrokenLinks,
        wall_clock: Callable[[], float],
        orders: Orders | None = None,
        scanner: Scanner | None = None,
        figures: UpdateFigures | None = None,
        found_at: Callable[[Manifest], float | None] = lambda _: None,
        hold_back: HoldBack | None = None,
    ) -> None:
        """`figures`: where failures are counted. `hold_back`: what may not be taken yet is as if it were not there.
        `found_at`: when a commit was found where it was fetched from, if it was not made here.
        """
        self.run_dir = run_dir
        self.found_at = found_at
        self.orders = orders or Orders()
        self.quarantine = Quarantine()
        self._scanner = scanner or Scanner(run_dir)
        self._broken = broken
        self._figures = figures or UpdateFigures()
        self._wall_clock = wall_clock
        self._fit = SchemaFit(run_dir)
        self._hold_back = hold_back
        self._listed = self._scanned = Listing()
        self._seen_at: dict[tuple[Node, Kind], float] = {}
        self._followed: tuple[ExportMetadata, str] | None = None

    def look(self) -> None:
        """List everything anew."""
        self._take(self._scanner.scan(), max_new=_MAX_NOTED)

    def look_at(self, manifests: Iterable[Path]) -> None:
        """Add what is new; what vanished is found by the next look."""
        listing = self._scanner.add(manifests)
        self._take(listing, max_new=len(listing.manifests) - len(self._listed.manifests))

    def look_at_held_back(self) -> bool:
        """Whether something may be taken now that might not before, or the other way round. Lists nothing."""
        before = self._scanned.manifests
        self._let_through()
        return self._scanned.manifests != before

    def _take(self, listing: Listing, *, max_new: int) -> None:
        if listing is not self._listed:
            now = self._wall_clock()
            self._listed = listing
            self._note_seen(now, max_new)
            self.quarantine.forget_what_is_gone(listing)
        self._let_through()

    def _let_through(self) -> None:
        self._scanned = self._hold_back.allowed(self._listed) if self._hold_back is not None else self._listed

    def _note_seen(self, now: float, max_new: int) -> None:
        """Note when the new commits were seen: go back from the newest until `max_new` of them are found.

        They need not be the last ones: a full is committed later than the deltas beside and after it.
        """
        new: list[tuple[Node, Kind]] = []
        for manifest in reversed(self._listed.manifests[-_MAX_NOTED:]):
            if len(new) >= max_new:
                break
            commit = manifest.node, manifest.kind
            if commit not in self._seen_at:
                new.append(commit)
        self._seen_at |= dict.fromkeys(reversed(new), now)
        while len(self._seen_at) > 2 * _MAX_NOTED:
            del self._seen_at[next(iter(self._seen_at))]

    @property
    def is_empty(self) -> bool:
        return not self._listed.manifests and not self._listed.refused

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Those that can be read, in the order of their positions, also what is held back. For any thread."""
        return self._listed.manifests

    @property
    def newest(self) -> Position | None:
        manifests = self._listed.manifests
        return manifests[-1].position if manifests else None

    @property
    def held_back(self) -> int:
        """How many commits are there and may not be taken yet."""
        return len(self._listed.manifests) - len(self._scanned.manifests)

    def seen_at(self, manifest: Manifest) -> float | None:
        """When a look found it; None when that was too long ago."""
        return self._seen_at.get((manifest.node, manifest.kind))

    def plan_from(
        self,
        live: Node | None,
        metadata: ExportMetadata,
        undoable: Sequence[Node] = (),
        *,
        failed: AbstractSet[Node] = frozenset(),
    ) -> Plan:
        """The way to the newest state that can be reached and is allowed, around what is broken or quarantined.

        And around what has `failed` this once.
        """
        listing = self._broken.filter(self._scanned)
        manifests, refused = listing.manifests, listing.refused
        schema, wholes = metadata.schema.digest, self._fit.wholes(metadata.schema)
        excluded = self.quarantine.nodes | self.orders.bad | failed
        if not metadata.is_incremental:
            # Deltas cannot be used, but they say where in the history the live state is.
            fulls = self._full_nodes()
            manifests = tuple(m for m in manifests if m.kind is Kind.FULL or m.node not in fulls)
            excluded |= {m.node for m in manifests if m.kind is Kind.DELTA}
            undoable = ()
        elif self.orders.pin is None and live is not None:
            straight = plan_straight_line(live, manifests, schema=schema, wholes=wholes)
            if straight is not None and excluded.isdisjoint(_targets(straight)):
                return straight
        way = functools.partial(plan_to, self.orders.pin) if self.orders.pin is not None else plan
        found = way(
            live,
            manifests,
            undoable=undoable,
            schema=schema,
            wholes=wholes,
            excluded=excluded,
            refused=refused,
        )
        if isinstance(found.problem, SchemaError):
            return dataclasses.replace(found, problem=self._explained(found.problem, metadata))
        return found

    def _explained(self, problem: SchemaError, metadata: ExportMetadata) -> SchemaError:
        reason = self._fit.why_not(metadata.schema, problem.found)
        message = f"{problem.message}: {reason}"
        return SchemaError(message, expected=problem.expected, found=problem.found, hint=problem.hint)

    def report_broken(self, manifest: Manifest, error: HotdeltaError) -> HotdeltaError | None:
        """Remember a failure. Returns one that is still being retried, if any: it is too early to go around that."""
        self._figures.count_failure(error)
        if isinstance(error, SanityError):
            self.quarantine.add(manifest, error)
        else:
            self._broken.add(manifest, error)
        return self._broken.late()

    def report_used(self, manifest: Manifest, metadata: ExportMetadata) -> None:
        """An export has taken it."""
        self._broken.forget(manifest)
        followed = metadata, manifest.schema
        if followed != self._followed:
            self._followed = followed
            self._tell_of_whole(manifest, metadata.schema.digest)

    def _tell_of_whole(self, manifest: Manifest, own: str) -> None:
        if manifest.schema != own:
            event(
                logger,
                logging.INFO,
                "export follows another schema as a part of it",
                schema=manifest.schema[:12],
                own=own[:12],
                position=manifest.position,
            )

    @property
    def retry_reason(self) -> str:
        """What is not used yet but will be tried again soon; empty when there is nothing of the kind."""
        late = self._broken.late()
        return str(late) if late else ""

    def unusable_after(self, node: Node) -> str:
        """Why something that is newer than a state cannot be used; empty when nothing newer is known to be bad."""
        for quarantined, reason in self.quarantine.reasons.items():
            if quarantined.position > node.position:
                return reason
        broken = self._broken.newest()
        if broken is not None and broken[0] > node.position:
            return f"{broken[0]} cannot be used: {broken[1]}"
        refused = [item for item in self._scanned.refused if item.position and item.position > node.position]
        return f"{refused[0].path.name} cannot be used: {refused[0].reason}" if refused else ""

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """Everything that is not used although it is there, and why, oldest first."""
        found = [Quarantined(node, reason, BAD_VALUES) for node, reason in self.quarantine.reasons.items()]
        found += [
            Quarantined(manifest.node, str(error), cause_of(error)) for manifest, error in self._broken.final
        ]
        found += [
            Quarantined(node, "it was rolled back, and is bad until a resume", ROLLED_BACK)
            for node in self.orders.bad
        ]
        return tuple(sorted(found, key=lambda item: item.node.position))

    def nodes_between(self, low: Position, high: Position) -> frozenset[Node]:
        """The states after `low`, up to and with `high`."""
        return frozenset(m.node for m in self._scanned.manifests if low < m.position <= high)

    def ancestor_of(self, node: Node, deltas: int) -> Node | None:
        """The state so many deltas before another, as far as the directory tells."""
        parents = {m.node: m.parent for m in self._scanned.manifests if m.kind is Kind.DELTA}
        at: Node | None = node
        while at is not None and deltas > 0:
            at, deltas = parents.get(at), deltas - 1
        return at

    @property
    def refused(self) -> tuple[Refused, ...]:
        return self._scanned.refused

    def deltas_after(self, node: Node) -> int:
        """How many deltas are newer than a state; for an export that cannot take them."""
        return sum(1 for m in self._scanned.manifests if m.kind is Kind.DELTA and m.position > node.position)

    def commits_after(self, node: Node) -> int:
        """How many positions with a commit are newer than a state."""
        newer = set()
        for manifest in reversed(self._scanned.manifests):
            if manifest.position <= node.position:
                break
            newer.add(manifest.position)
        return len(newer)

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
        fulls, deltas = self._full_nodes(), 0
        at: Node | None = node
        while at is not None and at not in fulls:
            at, deltas = parents.get(at), deltas + 1
        return Origin(at.position, deltas) if at is not None else Origin(None, 0)

    def origin_after(self, manifest: Manifest, before: Origin) -> Origin:
        """The origin once a commit is applied. A full, or the delta that closes one, starts the count anew."""
        if self._has_full(manifest.node):
            return Origin(manifest.position, 0)
        base = manifest.base
        if base is not None and (before.base is None or base > before.base) and self._full_at(base):
            # That full was committed after its closing delta was taken: count from there.
            return self.origin_of(manifest.node)
        return Origin(before.base, before.deltas + 1)

    def _full_nodes(self) -> frozenset[Node]:
        return frozenset(m.node for m in self._scanned.manifests if m.kind is Kind.FULL)

    def _has_full(self, node: Node) -> bool:
        full = self._full_at(node.position)
        return full is not None and full.node == node

    def _full_at(self, position: Position) -> Manifest | None:
        """The full at a position, by binary search: a full is listed before the delta of the same position."""
        manifests = self._scanned.manifests
        place = bisect.bisect_left(manifests, position, key=lambda manifest: manifest.position)
        found = manifests[place] if place < len(manifests) else None
        is_it = found is not None and found.kind is Kind.FULL and found.position == position
        return found if is_it else None


def _targets(found: Plan) -> set[Node]:
    return {step.manifest.node for step in found.steps if isinstance(step, ApplyDelta)}
