"""How far a check of many bytes is, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

STEP_BYTES = 1_000_000_000


class CheckProgress:
    """Shows (bytes done, bytes in all) at every gigabyte: what is small is checked in silence."""

    def __init__(self, total: int, show: Callable[[int, int], None]) -> None:
        self._total = total
        self._show = show
        self._done = 0

    def add(self, count: int) -> None:
        before, self._done = self._done, self._done + count
        if before // STEP_BYTES != self._done // STEP_BYTES:
            self._show(self._done, self._total)
