"""The way to one position, wherever it is: onwards by deltas, back by undo, or through the right full."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

from hotdelta.chain import Manifest, Node, Plan, Position, Refused, UndoTo, plan
from hotdelta.errors import HoleError


def plan_to(
    pin: Position,
    live: Node | None,
    manifests: Sequence[Manifest],
    *,
    undoable: Sequence[Node] = (),
    schema: str,
    wholes: Container[str] = (),
    excluded: Collection[Node] = (),
    refused: Sequence[Refused] = (),
) -> Plan:
    """Pure. No steps when `pin` is live; no target, and a problem, when nothing leads there."""
    if live is not None and live.position == pin:
        return Plan()
    for node in undoable:
        if node.position == pin and node not in excluded:
            return Plan((UndoTo(node),), node)
    until = [manifest for manifest in manifests if manifest.position <= pin]
    starts = (live, None) if live is not None and live.position < pin else (None,)
    problem = None
    for start in starts:
        found = plan(
            start, until, undoable=undoable, schema=schema, wholes=wholes, excluded=excluded, refused=refused
        )
        if found.target is not None and found.target.position == pin:
            return found
        problem = found.problem or problem
    because = f": {problem}" if problem else ""
    return Plan(
        problem=HoleError(f"nothing leads to {pin}{because}", missing=str(pin), wanted_by="the operator")
    )
