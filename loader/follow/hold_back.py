"""Commits that are not to be taken yet: too young, or not yet served by the replica that goes ahead.

What a bad commit does is seen on one replica, and the others have not taken it when somebody, or a check, rolls it
back.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hotdelta.chain import Kind, Listing, Manifest, Node, Position

# As many commits are remembered with the time when they were seen.
_MAX_SEEN = 10_000


@dataclass(frozen=True, slots=True)
class Ahead:
    """What the replica that goes ahead serves, and which states it does not take."""

    position: Position | None = None
    refused: frozenset[Node] = frozenset()


class HoldBack:
    """Which commits may be taken. `allowed` is for the updater, `hear` and `miss` for whoever asks the one ahead.

    Nothing is taken that the one ahead has not served for `seconds`. Without one, a commit has to be that old: by the
    clock of the trainer, or, where that is wrong, by the time when it was seen here.
    """

    def __init__(
        self,
        seconds: float,
        *,
        has_leader: bool,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        taken: Position | None = None,
    ) -> None:
        """`taken`: as far as an earlier process of this server came. It goes that far again before the one ahead is
        heard of, which may be away, and no further.
        """
        self._seconds = seconds
        self._has_leader = has_leader
        self._clock = clock
        self._wall_clock = wall_clock
        self._seen_at: dict[tuple[Node, Kind], float] = {}
        self._told = threading.Lock()
        self._ahead = Ahead()
        # Positions that the one ahead came to, each later than the one before, and when.
        self._reached: list[tuple[Position, float]] = [(taken, -math.inf)] if taken is not None else []
        self._silent = "has not been asked yet"

    def hear(self, ahead: Ahead) -> None:
        """What the one ahead says now. One that was rolled back has never been where it was."""
        with self._told:
            self._ahead, self._silent = ahead, ""
            position = ahead.position
            self._reached = [found for found in self._reached if position and found[0] <= position]
            if position and (not self._reached or self._reached[-1][0] < position):
                self._reached.append((position, self._clock()))
            self._forget_old()

    def miss(self, reason: str) -> None:
        """It does not answer: what it had reached before may be taken, and no more."""
        with self._told:
            self._silent = reason

    @property
    def silent_reason(self) -> str:
        """Why nothing is heard of the one ahead; empty when it answers, or there is none."""
        return self._silent if self._has_leader else ""

    def allowed(self, listing: Listing) -> Listing:
        """Without what may not be taken yet."""
        with self._told:
            ahead, limit = self._ahead, self._limit()
        now, wall = self._clock(), self._wall_clock()
        if self._has_leader:
            found = tuple(
                m
                for m in listing.manifests
                if limit is not None and m.position <= limit and m.node not in ahead.refused
            )
        else:
            found = tuple(m for m in listing.manifests if self._is_old(m, now, wall))
            self._forget_seen(listing.manifests)
        return (
            listing if len(found) == len(listing.manifests) else dataclasses.replace(listing, manifests=found)
        )

    def _limit(self) -> Position | None:
        """The newest position that the one ahead has had for long enough."""
        until = self._clock() - self._seconds
        return max((position for position, since in self._reached if since <= until), default=None)

    def _forget_old(self) -> None:
        """Of those that it has had for long enough only the newest counts."""
        limit = self._limit()
        if limit is not None:
            self._reached = [found for found in self._reached if found[0] >= limit]

    def _is_old(self, manifest: Manifest, now: float, wall: float) -> bool:
        if manifest.created_at <= wall - self._seconds:
            return True
        seen = self._seen_at.setdefault((manifest.node, manifest.kind), now)
        return seen <= now - self._seconds

    def _forget_seen(self, manifests: Collection[Manifest]) -> None:
        if len(self._seen_at) > _MAX_SEEN:
            there = {(manifest.node, manifest.kind) for manifest in manifests}
            self._seen_at = {commit: at for commit, at in self._seen_at.items() if commit in there}
