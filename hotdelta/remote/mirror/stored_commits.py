"""What the log of a store holds, as far as a follower may need it: read once, and looked at again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.errors import ManifestError, ObjectMissingError
from hotdelta.logs import event
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.stores.contract import Store

logger = logging.getLogger(__name__)

# So many positions behind the last known one are asked for by name: a run counts them, so the hint names them all.
_MOST_BY_NAME = 16
# The fulls whose manifests are read, the newest first: when one is damaged the one before it may serve.
_FULLS_READ = 3
_MOST_TIMES = 4096

Content = tuple[Manifest, bytes]


class StoredCommits:
    """The names in the log and the manifests behind those that matter. One thread at a time.

    `distrust` says why a manifest must not be used, or nothing. `clock` tells when something was first known of. Every
    look may raise StoreError; what was found out until then is kept.
    """

    def __init__(
        self,
        store: Store,
        *,
        pool: Executor,
        clock: Callable[[], float],
        distrust: Callable[[Manifest], str] | None = None,
    ) -> None:
        self._log = CommitLog(store)
        self._address = store.address
        self._pool = pool
        self._clock = clock
        self._distrust = distrust
        self._head: Head | None = None
        self._names: dict[Kind, set[Position]] = {kind: set() for kind in Kind}
        self._read: dict[tuple[Kind, Position], Content] = {}
        self._arrived: set[tuple[Kind, Position]] = set()
        self._refused: dict[tuple[Kind, Position], str] = {}
        self._told: set[tuple[tuple[Kind, Position], str]] = set()
        self.version = 0
        """Another one whenever what may be chosen from has changed."""
        self._seen_at: dict[tuple[Kind, Node], float] = {}

    def look_at_hint(self) -> bool:
        """Whether the hint says that something is new. It decides nothing: what it names is looked for."""
        head = self._log.head()
        has_moved = head != self._head
        if has_moved:
            self._look_for_named(head)
        self._head = head
        return has_moved

    @property
    def has_hint(self) -> bool:
        """Whether the store has a hint at all: a chain that was put there by hand may have none."""
        return self._head is not None and self._head != Head()

    def look_for_new(self) -> None:
        """List what is behind the last known names."""
        for kind in Kind:
            known = self._names[kind]
            self._names[kind] = known.union(self._log.positions_after(kind, max(known) if known else None))

    def look_at_all(self, local: Iterable[Manifest]) -> None:
        """List everything: also what came behind a name that was known, and what is gone.

        Of what has arrived only `local` is still here.
        """
        self._arrived &= {(manifest.kind, manifest.position) for manifest in local}
        for kind in Kind:
            self._names[kind] = set(self._log.positions_after(kind, None))
        for kind, position in [key for key in self._read if key[1] not in self._names[key[0]]]:
            self._forget(kind, position)
        # A manifest that could not be used may have been put right.
        self._refused = {}
        # A listing may be older than the hint.
        self._look_for_named(self._head or Head())

    def read(self, after: Position | None, *, pin: Position | None, broken: Iterable[Node]) -> None:
        """Read the manifests that a follower may need who is at `after`, or (None) has nothing to begin with.

        `broken`: those of which something is damaged, so that what is before them matters.
        """
        fulls = sorted(self._names[Kind.FULL], reverse=True)
        wanted = [(Kind.FULL, position) for position in fulls[:_FULLS_READ]]
        if pin is not None:
            wanted += [(Kind.FULL, position) for position in fulls if position <= pin][:_FULLS_READ]
        self._read_all(wanted)
        damaged = set(broken)
        usable = [
            position
            for _, position in wanted
            if (found := self._read.get((Kind.FULL, position))) is not None and found[0].node not in damaged
        ]
        floors = [after if after is not None else max(usable, default=None)]
        if pin is not None:
            floors.append(max((position for position in usable if position <= pin), default=None))
        floor = min((position for position in floors if position is not None), default=None)
        deltas = [p for p in self._names[Kind.DELTA] if floor is None or p > floor]
        self._read_all((Kind.DELTA, position) for position in sorted(deltas))

    @property
    def manifests(self) -> Sequence[Manifest]:
        return [manifest for manifest, _ in self._read.values()]

    @property
    def newest(self) -> Position | None:
        """Of all names, whatever is behind them."""
        return max((max(names) for names in self._names.values() if names), default=None)

    @property
    def refused(self) -> Sequence[str]:
        return tuple(self._refused.values())

    def content_of(self, manifest: Manifest) -> bytes:
        return self._read[manifest.kind, manifest.position][1]

    def seen_at(self, manifest: Manifest) -> float | None:
        """When it was first known of; None when that was too long ago. For any thread."""
        return self._seen_at.get((manifest.kind, manifest.node))

    def ask_for(self, manifest: Manifest) -> Node | None:
        """Which state has its name there, if any: asked for by name, since a listing may be old. Raises StoreError."""
        try:
            return self._log.read(manifest.kind, manifest.position)[0].node
        except ObjectMissingError:
            return None
        except ManifestError:
            return manifest.node

    def note_arrival(self, manifest: Manifest) -> None:
        """It is here, and need not be chosen from any more."""
        self._arrived.add((manifest.kind, manifest.position))
        self._read.pop((manifest.kind, manifest.position), None)

    def forget(self, manifest: Manifest) -> None:
        """It is not there any more."""
        self._forget(manifest.kind, manifest.position)

    def _forget(self, kind: Kind, position: Position) -> None:
        self._names[kind].discard(position)
        self._arrived.discard((kind, position))
        if self._read.pop((kind, position), None) is not None:
            self.version += 1

    def _look_for_named(self, head: Head) -> None:
        for kind, position in ((Kind.FULL, head.full), (Kind.DELTA, head.delta)):
            if position is None or position in self._names[kind]:
                continue
            last = max(self._names[kind], default=None)
            if kind is Kind.FULL:
                between = [position]
            elif (
                last is not None and last.run == position.run and 0 < position.seq - last.seq <= _MOST_BY_NAME
            ):
                between = [Position(position.run, seq) for seq in range(last.seq + 1, position.seq + 1)]
            else:
                between = []
            self._read_all((kind, each) for each in between)
            self._names[kind].update(each for each in between if (kind, each) in self._read)
            if position not in self._names[kind]:
                self.look_for_new()

    def _read_all(self, wanted: Iterable[tuple[Kind, Position]]) -> None:
        """Those that are not known yet, several at a time. Raises StoreError when one could not be asked for."""
        keys = [
            key
            for key in dict.fromkeys(wanted)
            if not any(key in known for known in (self._read, self._refused, self._arrived))
        ]
        for key, found in zip(keys, self._pool.map(self._read_one, keys), strict=True):
            if isinstance(found, str):
                self._refuse(key, found)
            elif found is None:
                self._forget(*key)
            elif reason := self._distrust(found[0]) if self._distrust else "":
                self._refuse(key, reason)
            else:
                self._read[key] = found
                self.version += 1
                self._note_seen(found[0])

    def _read_one(self, key: tuple[Kind, Position]) -> Content | str | None:
        """The manifest, why there is none that can be used, or None when nothing is there. In threads of the pool."""
        try:
            return self._log.read(*key)
        except ObjectMissingError:
            return None
        except ManifestError as error:
            return str(error)

    def _refuse(self, key: tuple[Kind, Position], reason: str) -> None:
        self._refused[key] = reason
        if (key, reason) not in self._told:
            self._told.add((key, reason))
            event(
                logger,
                logging.WARNING,
                "manifest in the store cannot be used",
                store=self._address,
                name=layout.log_name(*key),
                reason=reason,
            )

    def _note_seen(self, manifest: Manifest) -> None:
        self._seen_at.setdefault((manifest.kind, manifest.node), self._clock())
        while len(self._seen_at) > _MOST_TIMES:
            del self._seen_at[next(iter(self._seen_at))]
