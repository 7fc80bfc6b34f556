"""Commits of a store that cannot be brought as they are: tried again for a while, then told and gone around."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from hotdelta.chain.format.manifest import Manifest
from hotdelta.errors import HotdeltaError
from hotdelta.logs import event
from hotdelta.remote.mirror.choice import Key, key_of

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class _Damage:
    manifest: Manifest
    reason: str
    first_at: float
    next_try: float
    pause_seconds: float
    is_told: bool = False


class Damages:
    """Belongs to one thread; `told` may be read by any."""

    def __init__(self, *, patience_seconds: float, clock: Callable[[], float]) -> None:
        """`patience_seconds`: so long it may be arriving."""
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._found: dict[Key, _Damage] = {}

    def add(self, manifest: Manifest, error: HotdeltaError) -> None:
        now = self._clock()
        found = self._found.setdefault(
            key_of(manifest), _Damage(manifest, "", now, now, _FIRST_PAUSE_SECONDS / 2)
        )
        found.reason = str(error)
        found.pause_seconds = min(2 * found.pause_seconds, _LONGEST_PAUSE_SECONDS)
        found.next_try = now + found.pause_seconds
        if not found.is_told and now - found.first_at >= self._patience_seconds:
            found.is_told = True
            event(
                logger,
                logging.ERROR,
                "commit in the store is damaged",
                position=manifest.position,
                kind=manifest.kind,
                reason=error,
            )

    def forget(self, manifest: Manifest) -> None:
        """It has arrived, or is gone."""
        self._found.pop(key_of(manifest), None)

    def is_waiting(self, manifest: Manifest) -> bool:
        """Whether it is too early for the next try."""
        found = self._found.get(key_of(manifest))
        return found is not None and self._clock() < found.next_try

    def broken(self) -> frozenset[Key]:
        """Those to go around for now: damaged for longer than it takes to arrive, and tried not long ago."""
        now = self._clock()
        return frozenset(key for key, found in self._found.items() if found.is_told and now < found.next_try)

    @property
    def told(self) -> tuple[str, ...]:
        # At once: the thread of the mirror may add one meanwhile.
        found = tuple(self._found.values())
        return tuple(
            f"{item.manifest.kind} {item.manifest.position}: {item.reason}"
            for item in sorted(found, key=lambda item: item.manifest.position)
            if item.is_told
        )
