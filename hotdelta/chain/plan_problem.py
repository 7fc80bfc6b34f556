"""Why a plan ends before the newest state: the link that is missing, who wants it, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from hotdelta.chain.lineage import Lineage
from hotdelta.chain.manifest import Kind, Manifest
from hotdelta.chain.position import Node, Position
from hotdelta.chain.scan import Refused
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
