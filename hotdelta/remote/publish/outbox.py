"""What is committed here and not yet published: two sequences, deltas and fulls, and how much lies in them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Unpublished:
    """How many commits wait for the store, and how large they are."""

    deltas: int = 0
    fulls: int = 0
    bytes: int = 0


class Outbox:
    """Filled by the threads that commit, emptied by one thread for each kind; anybody may ask and wait.

    Deltas go one after the other. Of fulls the newest is enough: one that waits makes way for it. A commit stays in
    here until it is published, also while it is being sent. What lay in the directory at the start is undecided until
    the store has said what it has of it.
    """

    def __init__(self, *, max_bytes: int) -> None:
        """`max_bytes`: what deltas may take. The one full that waits is never more than a trainer keeps anyway."""
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._deltas: deque[Manifest] = deque()
        self._delta_bytes = 0
        self._waiting_full: Manifest | None = None
        self._full_on_its_way: Manifest | None = None
        self._full_positions: set[Position] = set()
        self._undecided: tuple[Manifest, ...] = ()
        self._is_decided = False
        self._is_closed = False

    def begin(self, manifests: Sequence[Manifest]) -> None:
        """What may have to be published lies in the directory."""
        with self._changed:
            self._undecided, self._is_decided = tuple(manifests), False
            self._full_positions.update(m.position for m in manifests if m.kind is Kind.FULL)

    def decide(self, backlog: Sequence[Manifest]) -> None:
        """Only this of it has to be; it goes before what was committed since."""
        with self._changed:
            since = list(self._deltas)
            self._deltas.clear()
            self._delta_bytes = 0
            fulls = [self._waiting_full] if self._waiting_full is not None else []
            self._undecided, self._is_decided = (), True
            self.add([*backlog, *since, *fulls])

    def add(self, manifests: Iterable[Manifest]) -> None:
        with self._changed:
            for manifest in manifests:
                if manifest.kind is Kind.DELTA:
                    self._deltas.append(manifest)
                    self._delta_bytes += manifest.total_bytes
                else:
                    self._waiting_full = manifest
                    self._full_positions.add(manifest.position)
            self._changed.notify_all()

    def note_fulls(self, positions: Iterable[Position]) -> None:
        """There is a full, or will be: before the delta of the same position is added, which closes it."""
        with self._changed:
            self._full_positions.update(positions)

    def waiting(self) -> tuple[tuple[Manifest, ...], frozenset[Position]]:
        """The deltas in their order; and where there are fulls, or will be, from the first of them on."""
        with self._changed:
            return tuple(self._deltas), frozenset(self._full_positions)

    def next(self, kind: Kind, *, timeout_seconds: float) -> Manifest | None:
        """The one to publish next, when there is one in time. Stays in here until `note_published`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._can_go(kind), timeout_seconds)
            if self._is_closed or not self._can_go(kind):
                return None
            if kind is Kind.DELTA:
                return self._deltas[0]
            if self._full_on_its_way is None:
                self._full_on_its_way, self._waiting_full = self._waiting_full, None
            return self._full_on_its_way

    def note_published(self, manifest: Manifest) -> None:
        """Or given up. With a delta those go that were folded into it."""
        with self._changed:
            if manifest.kind is Kind.FULL:
                self._full_on_its_way = None
            else:
                while self._deltas and self._deltas[0].position <= manifest.position:
                    self._delta_bytes -= self._deltas.popleft().total_bytes
                self._full_positions = {at for at in self._full_positions if at > manifest.position}
            self._changed.notify_all()

    @property
    def is_decided(self) -> bool:
        return self._is_decided

    def positions(self) -> set[tuple[Kind, Position]]:
        """Of what is in here."""
        with self._changed:
            return {(m.kind, m.position) for m in (*self._undecided, *self._everything())}

    def unpublished(self) -> Unpublished:
        with self._changed:
            fulls = self._fulls()
            size = self._delta_bytes + sum(full.total_bytes for full in fulls)
            return Unpublished(len(self._deltas), len(fulls), size)

    def is_full(self) -> bool:
        with self._changed:
            return self._delta_bytes >= self._max_bytes

    def wait_for_room(self, is_over: Callable[[], bool]) -> None:
        """Until it is not full, or is closed, or whoever waits has a reason to go on."""
        while not is_over():
            with self._changed:
                if self._is_closed or not self.is_full():
                    return
                self._changed.wait(POLL_SECONDS)

    def wait_until_empty(self, timeout_seconds: float, is_over: Callable[[], bool]) -> bool:
        """False when something is left."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._has_any() and not is_over() and time.monotonic() < deadline:
                self._changed.wait(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
            return not self._has_any()

    def close(self) -> None:
        """Nobody gets anything any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _can_go(self, kind: Kind) -> bool:
        return self._is_decided and self._has(kind)

    def _has(self, kind: Kind) -> bool:
        return bool(self._deltas) if kind is Kind.DELTA else bool(self._fulls())

    def _has_any(self) -> bool:
        return not self._is_decided or any(self._has(kind) for kind in Kind)

    def _fulls(self) -> list[Manifest]:
        fulls = (self._full_on_its_way, self._waiting_full)
        return [full for full in fulls if full is not None]

    def _everything(self) -> list[Manifest]:
        return [*self._deltas, *self._fulls()]
