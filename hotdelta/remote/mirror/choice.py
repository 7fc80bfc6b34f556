"""Which commits of a store a follower needs here, and which of those here it needs no longer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.chain.history.plan import ApplyDelta, RestoreFull, Step, plan
from hotdelta.chain.store.retention import expired

# With more news than this it is worth to look whether a full is less to fetch.
_FEW = 64

# A commit: a full and its closing delta are one node.
Key = tuple[Kind, Node]
Way = tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Following:
    """What a mirror is told of its follower.

    `node`: the state that it serves, if any. `pin`: the position that it was ordered to. `wants_full`: deltas alone do
    not take it further, because one is bad, an undo is not in its memory, or its export takes none.
    """

    node: Node | None = None
    pin: Position | None = None
    wants_full: bool = False


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is here in the order of positions, what is on its way, and what the store has, as far as it can be used.

    `stored` need not have what is here.
    """

    local: Sequence[Manifest] = ()
    arriving: Sequence[Manifest] = ()
    stored: Sequence[Manifest] = ()


def key_of(manifest: Manifest) -> Key:
    return manifest.kind, manifest.node


def choose(following: Following, holdings: Holdings, *, max_bytes: int) -> tuple[Way, ...]:
    """The commits to bring; of each way one after the other, in this order, and none that is here.

    Of the ways that lead furthest the one with the least to fetch: deltas, where they lead there, and the newest full
    for a follower that has nothing to begin with, or whose next delta is gone. A full, too, for one who wants it, and
    when what is here is more than `max_bytes`, so that what is before it can go. One that is on its way is brought.
    """
    if (straight := _straight_on(following, holdings, max_bytes)) is not None:
        return straight
    everything = _joined(holdings)
    known = {key_of(manifest) for manifest in holdings.local}
    arriving_fulls = [manifest for manifest in holdings.arriving if manifest.kind is Kind.FULL]
    ways: list[Way] = []
    pin, node = following.pin, following.node
    if pin is not None and (node is None or node.position != pin):
        ways.append(_shortest_way(node, [m for m in everything if m.position <= pin], holdings))
    if pin is None or node is not None:
        ways.append(_shortest_way(node, everything, holdings))
    ways += [(manifest,) for manifest in arriving_fulls]
    if not arriving_fulls:
        if following.wants_full and not any(ways):
            ways.append(_way_of_full(node, everything, known))
        if (due := _due_full(holdings, max_bytes)) is not None:
            ways.append((due,))
    return _told_once(ways)


def to_remove(following: Following, local: Sequence[Manifest], *, max_bytes: int) -> tuple[Manifest, ...]:
    """What of the commits here goes, in this order, so that no more than `max_bytes` are left, if that can be.

    The newest full and all that follows it stay: a new export begins there, and so does a restart. So does what the
    follower has still before it. One that is pinned keeps what leads there, and goes on from the newest full.
    """
    excess = count_bytes(local) - max_bytes
    node, pin = following.node, following.pin
    if excess <= 0 or node is None:
        return ()
    is_there = node.position == pin
    to_pin = [manifest for manifest in local if pin is not None and manifest.position <= pin]
    kept = {key_of(manifest) for manifest in to_pin} - {key_of(m) for m in expired(to_pin, keep_fulls=1)}
    going = []
    for manifest in expired(local, keep_fulls=1):
        is_over = is_there or manifest.position < node.position
        if excess > 0 and is_over and key_of(manifest) not in kept:
            going.append(manifest)
            excess -= manifest.serving_bytes
    return tuple(going)


def of_another_history(local: Iterable[Manifest], stored: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """What is here and is contradicted by the store: somebody began anew under its address."""
    states = {manifest.position: manifest.state_id for manifest in stored}
    owners = {(manifest.kind, manifest.prefix): manifest.node for manifest in stored}
    return tuple(
        manifest
        for manifest in local
        if states.get(manifest.position, manifest.state_id) != manifest.state_id
        or owners.get((manifest.kind, manifest.prefix), manifest.node) != manifest.node
    )


def count_bytes(manifests: Iterable[Manifest]) -> int:
    return sum(manifest.serving_bytes for manifest in manifests)


def _straight_on(following: Following, holdings: Holdings, max_bytes: int) -> tuple[Way, ...] | None:
    """The course of things: one new delta after another, each the next link of what is here. None for all else."""
    node, local = following.node, holdings.local
    is_usual = node is not None and local and not following.wants_full and following.pin is None
    if any(manifest.kind is Kind.FULL for manifest in holdings.arriving):
        return None
    if not is_usual or node is None or len(holdings.stored) > _FEW or count_bytes(local) > max_bytes:
        return None
    newest = local[-1]
    if not (
        newest.kind is Kind.DELTA
        and newest.position.run == node.position.run
        and node.position <= newest.position
    ):
        return None
    way: list[Manifest] = []
    for manifest in sorted(holdings.stored, key=lambda manifest: manifest.position):
        if manifest.position <= newest.position or manifest.kind is Kind.FULL:
            continue
        if manifest.parent != (way[-1] if way else newest).node:
            return None
        way.append(manifest)
    is_all_here = {m.node for m in way}.issuperset(
        m.node for m in holdings.arriving if m.position > newest.position
    )
    return _told_once([tuple(way)]) if is_all_here else None


def _joined(holdings: Holdings) -> list[Manifest]:
    by_key = {
        key_of(manifest): manifest for manifest in (*holdings.local, *holdings.arriving, *holdings.stored)
    }
    return sorted(by_key.values(), key=lambda manifest: (manifest.position, manifest.kind is Kind.DELTA))


def _shortest_way(live: Node | None, everything: Sequence[Manifest], holdings: Holdings) -> Way:
    """To the newest state there is a way to: from what is served, from what is here, or from the newest full."""
    known = {key_of(manifest) for manifest in holdings.local}
    paid = known | {key_of(manifest) for manifest in holdings.arriving}
    here = [manifest for manifest in everything if key_of(manifest) in paid]
    found = plan(live, everything, undoable=_ancestors(live, everything))
    to_here = plan(None, here)
    from_here = plan(to_here.target, everything, undoable=_ancestors(to_here.target, everything))
    routes = (
        (found.target or live, found.steps),
        (from_here.target or to_here.target, (*to_here.steps, *from_here.steps)),
        ((by_full := plan(None, everything)).target, by_full.steps),
    )
    furthest = max((target.position for target, _ in routes if target is not None), default=None)
    ways = [
        _without(known, steps)
        for target, steps in routes
        if target is not None and target.position == furthest
    ]
    best = min(ways, key=lambda way: count_bytes(m for m in way if key_of(m) not in paid), default=())
    # A live model takes deltas more easily than a full, also than one that is on its way for another reason.
    is_by_deltas = ways and live is not None and all(m.kind is Kind.DELTA for m in ways[0])
    return ways[0] if is_by_deltas and count_bytes(ways[0]) <= count_bytes(best) else best


def _way_of_full(live: Node | None, everything: Sequence[Manifest], known: Collection[Key]) -> Way:
    """The newest full, and what leads on from it; nothing when that would not lead beyond what is served."""
    found = plan(None, everything)
    is_ahead = found.target is not None and (live is None or found.target.position > live.position)
    return _without(known, found.steps) if is_ahead else ()


def _due_full(holdings: Holdings, max_bytes: int) -> Manifest | None:
    """The newest full, if there is more here than there may be, and it would let all before it go.

    Where a full alone is more than that, deltas may be as much once more: else every full would be fetched.
    """
    newest = max((m.position for m in holdings.local if m.kind is Kind.FULL), default=None)
    newer = [m for m in holdings.stored if m.kind is Kind.FULL and (newest is None or m.position > newest)]
    full = max(newer, key=lambda manifest: manifest.position, default=None)
    if full is None or count_bytes(holdings.local) <= max(max_bytes, 2 * full.serving_bytes):
        return None
    return full


def _without(known: Collection[Key], steps: Iterable[Step]) -> Way:
    manifests = (step.manifest for step in steps if isinstance(step, ApplyDelta | RestoreFull))
    return tuple(manifest for manifest in manifests if key_of(manifest) not in known)


def _ancestors(node: Node | None, manifests: Iterable[Manifest]) -> tuple[Node, ...]:
    """The states that lead to a node: an undo may go back to one of them, as far as is known here."""
    parents = {m.node: m.parent for m in manifests if m.kind is Kind.DELTA and m.parent is not None}
    found = []
    while node is not None and (node := parents.get(node)) is not None:
        found.append(node)
    return tuple(found)


def _told_once(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Without what an earlier way has, and without empty ones."""
    seen: set[Key] = set()
    told = []
    for way in ways:
        own = tuple(manifest for manifest in way if key_of(manifest) not in seen)
        seen.update(map(key_of, own))
        if own:
            told.append(own)
    return tuple(told)
