"""The loader's own plans: straight on by deltas, in time that depends on what is new alone; and to a pinned position.

hotdelta.chain.history.plan looks at every manifest: 140 ms with 10,000 of them, in which no prediction gets a word in.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

from hotdelta.chain import ApplyDelta, Kind, Manifest, Node, Plan, Position, Refused, UndoTo, plan
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


def plan_straight_line(
    live: Node, manifests: Sequence[Manifest], *, schema: str, wholes: Container[str] = ()
) -> Plan | None:
    """The same as plan() when all that is newer than `live` is one line of deltas from it; None when it is not.

    `manifests` are in the order of a Listing.
    """
    newer = _newer(live, manifests)
    if not newer:
        is_newest = bool(manifests) and manifests[-1].node == live
        return Plan() if is_newest else None
    node = live
    steps: list[ApplyDelta] = []
    unclosed: Node | None = None
    for manifest in newer:
        if manifest.schema != schema and manifest.schema not in wholes:
            return None
        if unclosed is not None and manifest.node != unclosed:
            return None
        if manifest.kind is Kind.FULL:
            unclosed = manifest.node
        elif manifest.parent == node:
            node, unclosed = manifest.node, None
            steps.append(ApplyDelta(manifest))
        else:
            return None
    return None if unclosed is not None else Plan(tuple(steps), node)


def _newer(live: Node, manifests: Sequence[Manifest]) -> list[Manifest]:
    newer: list[Manifest] = []
    for manifest in reversed(manifests):
        if manifest.position <= live.position:
            break
        newer.append(manifest)
    newer.reverse()
    return newer
