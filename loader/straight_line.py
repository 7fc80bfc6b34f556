"""The plan for the everyday case, in time that depends on what is new and not on how much the directory holds.

hotdelta.chain.plan looks at every manifest: 140 ms with 10,000 of them, in which no prediction gets a word in.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from hotdelta.chain import ApplyDelta, Kind, Manifest, Node, Plan


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
