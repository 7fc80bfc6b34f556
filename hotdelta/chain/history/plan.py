"""Decides how a live model gets to the newest state that can be reached. Pure: values in, a plan out, no clock.

A plan that ends before the newest state says why: the link that is missing, who wants it, and what to do.

The target is the newest node of the newest run's history that deltas can reach from the live state, from a state
that can be undone to, or from a full. A full and its closing delta are one node, so a follower needs no full.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.chain.history.lineage import Lineage, trace_lineage
from hotdelta.chain.history.scan import Refused
from hotdelta.errors import ChainError, HoleError, SchemaError

_MAX_REASONS = 3
_WAIT_FOR_FULL = "the next full steps over it"


@dataclass(frozen=True, slots=True)
class Situation:
    """What plan() knew, and the node that its steps reach."""

    reached: Node | None
    lineage: Lineage
    manifests: Sequence[Manifest]
    schema: str | None
    wholes: Container[str]
    excluded: Collection[Node]
    refused: Sequence[Refused]

    def fits(self, manifest: Manifest) -> bool:
        return self.schema in (None, manifest.schema) or manifest.schema in self.wholes


def find_problem(situation: Situation) -> ChainError | None:
    """None when the newest state there is has been reached, or nothing is there."""
    if not situation.manifests:
        return _explain_empty(situation)
    newest = max(situation.manifests, key=lambda manifest: manifest.position)
    if not situation.lineage.has(newest.position):
        return _other_schema(situation, newest)
    reached = situation.reached
    if reached == newest.node:
        return None
    if reached is not None and situation.lineage.is_abandoned(reached.position):
        return _hole(
            situation,
            f"{reached} is on a branch that run {newest.position.run} abandoned, and neither undo nor a full "
            f"leads from there to {newest.position}",
            missing=f"a full of run {newest.position.run}",
            wanted_by=str(reached),
        )
    if reached is not None and reached.position > newest.position:
        return _hole(
            situation,
            f"the live state {reached} is not in the directory, whose newest is {newest.position}",
            missing=str(reached),
            wanted_by="the live model",
        )
    return _explain_first_gap(situation, newest)


def _explain_empty(situation: Situation) -> ChainError | None:
    if not situation.refused:
        return None
    return _hole(
        situation, "no manifest in the directory can be used", missing="a full", wanted_by="a new model"
    )


def _explain_first_gap(situation: Situation, newest: Manifest) -> ChainError:
    """Follows the parents of the newest state down to the first one that cannot be used."""
    by_node: dict[Node, list[Manifest]] = {}
    for manifest in situation.manifests:
        by_node.setdefault(manifest.node, []).append(manifest)
    node, wanted_by = newest.node, "the newest state"
    while True:
        found = by_node.get(node, [])
        if node in situation.excluded:
            return _hole(
                situation,
                f"{node} is excluded, because it was quarantined or rolled back, and {wanted_by} needs it",
                missing=str(node),
                wanted_by=wanted_by,
            )
        other = [m for m in found if not situation.fits(m)]
        if other:
            return _other_schema(situation, other[0])
        parent = next((m.parent for m in found if m.kind is Kind.DELTA), None)
        if parent is None:
            return _missing(situation, node.position, wanted_by)
        node, wanted_by = parent, str(node)


def _missing(situation: Situation, position: Position, wanted_by: str) -> HoleError:
    reasons = [refused.reason for refused in situation.refused if refused.position == position]
    because = f" ({reasons[0]})" if reasons else ""
    return _hole(
        situation,
        f"the chain has a hole: {position}{because} is missing, and {wanted_by} needs it",
        missing=str(position),
        wanted_by=wanted_by,
    )


def _hole(situation: Situation, message: str, *, missing: str, wanted_by: str) -> HoleError:
    hint = _WAIT_FOR_FULL
    if situation.refused:
        reasons = [f"{item.path.name}: {item.reason}" for item in situation.refused[:_MAX_REASONS]]
        hint = f"{hint}; refused manifests: {'; '.join(reasons)}"
    return HoleError(message, missing=missing, wanted_by=wanted_by, hint=hint)


def _other_schema(situation: Situation, manifest: Manifest) -> SchemaError:
    expected = situation.schema or ""
    return SchemaError(
        f"{manifest.position} belongs to a model of schema {manifest.schema[:12]}, this one is {expected[:12]}",
        expected=expected,
        found=manifest.schema,
        hint="export the new model and load it, or train into another directory",
    )


@dataclass(frozen=True, slots=True)
class ApplyDelta:
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class UndoTo:
    node: Node


@dataclass(frozen=True, slots=True)
class RestoreFull:
    manifest: Manifest


Step = ApplyDelta | UndoTo | RestoreFull


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in order, the node that they lead to, and why they do not lead further when they should."""

    steps: tuple[Step, ...] = ()
    target: Node | None = None
    problem: ChainError | None = None


def plan(
    live: Node | None,
    manifests: Sequence[Manifest],
    *,
    undoable: Sequence[Node] = (),
    schema: str | None = None,
    wholes: Container[str] = (),
    excluded: Collection[Node] = (),
    refused: Sequence[Refused] = (),
) -> Plan:
    """Plans from `live` (None: nothing is loaded) with what the directory holds.

    `undoable` are the nodes that the live model can go back to; `schema` is that of the live model, and `wholes` those
    of which it is a part; `excluded` are nodes that must not be used, because they are quarantined or were rolled back;
    `refused` only explains holes.
    """
    fitting = [m for m in manifests if schema in (None, m.schema) or m.schema in wholes]
    newest_run = max((manifest.position.run for manifest in fitting), default=0)
    lineage = trace_lineage(newest_run, manifests)
    usable = [m for m in fitting if lineage.has(m.position) and m.node not in excluded]
    routes = _Routes(live, set(undoable) - set(excluded), usable)
    is_comparable = live is not None and not _is_other_history(live, undoable, manifests, refused)
    target = routes.find_newest(live.position if live is not None and is_comparable else None)
    situation = Situation(target or live, lineage, manifests, schema, wholes, excluded, refused)
    return Plan(routes.steps_to(target) if target else (), target, find_problem(situation))


def _is_other_history(
    live: Node | None, undoable: Sequence[Node], manifests: Sequence[Manifest], refused: Sequence[Refused]
) -> bool:
    """Whether the directory now holds a history that the live state is no part of, so that no position compares.

    A manifest that is only refused, or an older state that is still known, says that it is the same history.
    """
    if live is None:
        return False
    known = {manifest.node for manifest in manifests} | {m.parent for m in manifests if m.parent is not None}
    state_ids = {node.position: node.state_id for node in known}
    past = (live, *undoable)
    if any(state_ids.get(node.position, node.state_id) != node.state_id for node in past):
        return live not in known
    return not refused and known.isdisjoint(past)


@dataclass(frozen=True, slots=True)
class _Sources:
    """From where deltas lead to a node: the live state, the nearest state to undo to, the newest full."""

    live: Node | None = None
    undo: Node | None = None
    full: Manifest | None = None

    def has_any(self) -> bool:
        return not (self.live is None and self.undo is None and self.full is None)

    @property
    def rank(self) -> tuple[bool, bool, bool]:
        return self.live is not None, self.undo is not None, self.full is not None


class _Routes:
    """The sources of every node, found in one pass in the order of positions: a parent comes before its child.

    Two deltas may lead to one node: a link, and what a link was folded into. The one that serves better is taken.
    """

    def __init__(self, live: Node | None, undoable: Collection[Node], usable: Sequence[Manifest]) -> None:
        self._live = live
        self._undoable = frozenset(undoable)
        self._links: dict[Node, tuple[Manifest, Node]] = {}
        self._fulls: dict[Node, Manifest] = {}
        leading: dict[Node, list[tuple[Manifest, Node]]] = {}
        for manifest in usable:
            if manifest.kind is Kind.FULL:
                self._fulls[manifest.node] = manifest
            elif manifest.parent is not None:
                leading.setdefault(manifest.node, []).append((manifest, manifest.parent))
        unique = dict.fromkeys(manifest.node for manifest in usable)
        self._nodes = sorted(unique, key=lambda node: node.position)
        self._sources: dict[Node, _Sources] = {}
        for node in self._nodes:
            self._sources[node] = self._find_sources(node, leading.get(node, ()))

    def _find_sources(self, node: Node, leading: Sequence[tuple[Manifest, Node]]) -> _Sources:
        full = self._fulls.get(node)
        if not leading:
            return _Sources(full=full)
        found = [(self._sources_beyond(parent), manifest, parent) for manifest, parent in leading]
        beyond, manifest, parent = max(found, key=lambda way: way[0].rank) if len(found) > 1 else found[0]
        self._links[node] = (manifest, parent)
        return _Sources(beyond.live, beyond.undo, full or beyond.full)

    def _sources_beyond(self, parent: Node) -> _Sources:
        beyond = self._sources.get(parent, _Sources())
        return _Sources(
            live=parent if parent == self._live else beyond.live,
            undo=parent if parent in self._undoable else beyond.undo,
            full=beyond.full,
        )

    def find_newest(self, floor: Position | None) -> Node | None:
        """The newest node that can be reached and is after `floor`."""
        for node in reversed(self._nodes):
            if floor is not None and node.position <= floor:
                return None
            if self._sources[node].has_any():
                return node
        return None

    def steps_to(self, target: Node) -> tuple[Step, ...]:
        sources = self._sources[target]
        if sources.live is not None:
            return self._deltas_between(sources.live, target)
        if sources.undo is not None:
            return (UndoTo(sources.undo), *self._deltas_between(sources.undo, target))
        if sources.full is not None:
            return (RestoreFull(sources.full), *self._deltas_between(sources.full.node, target))
        return ()

    def _deltas_between(self, source: Node, target: Node) -> tuple[ApplyDelta, ...]:
        steps = []
        node = target
        while node != source:
            delta, node = self._links[node]
            steps.append(ApplyDelta(delta))
        return tuple(reversed(steps))
