"""What of a directory its store does not have yet, and should. The decisions are pure; two functions ask the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.errors import ChainError
from hotdelta.remote.commit_log import CommitLog

# The positions of each kind that a store has in its log.
Positions = Mapping[Kind, Collection[Position]]


def backlog(manifests: Sequence[Manifest], tip: Node | None, there: Positions) -> tuple[Manifest, ...]:
    """What the directory holds of the history that leads to `tip`, and the store has not, in the order to send it.

    Deltas: those behind the newest that is there; with none there, those that follow the newest full, there or here.
    Fulls: the newest, unless that one or a later one is there. Nothing of other branches: nobody goes on from them.
    """
    history = _history(manifests, tip)
    fulls = [m for m in history if m.kind is Kind.FULL]
    fulls_there = _known(history, there[Kind.FULL])
    missing_full = [full for full in fulls[-1:] if not fulls_there or full.position > fulls_there[-1]]
    begin = _cursor(_known(history, there[Kind.DELTA]), fulls_there, [full.position for full in fulls])
    deltas = [m for m in history if m.kind is Kind.DELTA and (begin is None or m.position > begin)]
    return tuple(sorted([*missing_full, *deltas], key=_order))


def newest_of_both(manifests: Sequence[Manifest], there: Positions) -> Manifest | None:
    """The newest commit that the directory has and the log of the store as well, as far as positions tell."""
    both = [manifest for manifest in manifests if manifest.position in there[manifest.kind]]
    return max(both, key=_order, default=None)


def newest_position(there: Positions) -> Position | None:
    return max((position for positions in there.values() for position in positions), default=None)


def positions_in(log: CommitLog) -> Positions:
    """Raises StoreError."""
    return {kind: frozenset(log.positions_after(kind, None)) for kind in Kind}


def require_same_history(log: CommitLog, manifests: Sequence[Manifest], there: Positions) -> None:
    """Positions are only numbers: a store that was emptied and used again has other states under them.

    Raises ChainError, StoreError.
    """
    ours = newest_of_both(manifests, there)
    if ours is None:
        return
    theirs, _ = log.read(ours.kind, ours.position)
    if theirs.node != ours.node:
        raise ChainError(
            f"the spool and the store hold two histories: their states at {ours.position} differ",
            hint="remove the spool, and training goes on from the store; or give one of them another place",
        )


def _history(manifests: Sequence[Manifest], tip: Node | None) -> list[Manifest]:
    """The commits that lead to it, oldest first, as far back as the directory knows."""
    parents = {m.node: m.parent for m in manifests if m.kind is Kind.DELTA}
    nodes, node = set(), tip
    while node is not None and node not in nodes:
        nodes.add(node)
        node = parents.get(node)
    return sorted((m for m in manifests if m.node in nodes), key=_order)


def _known(history: Sequence[Manifest], there: Collection[Position]) -> list[Position]:
    positions = {manifest.position for manifest in history}
    return sorted(positions.intersection(there))


def _cursor(deltas: list[Position], fulls: list[Position], fulls_here: list[Position]) -> Position | None:
    for positions in (deltas, fulls, fulls_here):
        if positions:
            return positions[-1]
    return None


def _order(manifest: Manifest) -> tuple[Position, bool]:
    return manifest.position, manifest.kind is Kind.DELTA
