"""Says every few seconds how far a long export is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hotdelta.logs import event

logger = logging.getLogger(__name__)

_SILENT_SECONDS = 5.0


class Progress:
    """Counts the bytes of one pass over all values. An export that is done in a few seconds says nothing."""

    def __init__(
        self, phrase: str, total_bytes: int, clock: Callable[[], float] = time.monotonic, **fields: str
    ) -> None:
        self._phrase = phrase
        self._fields = fields
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._clock = clock
        self._said_at = clock()

    def advance(self, count: int) -> None:
        self._done_bytes += count
        now = self._clock()
        if now - self._said_at >= _SILENT_SECONDS:
            self._said_at = now
            share = self._done_bytes / max(1, self._total_bytes)
            event(
                logger,
                logging.INFO,
                self._phrase,
                **self._fields,
                done=f"{min(1.0, share):.0%}",
                megabytes=self._total_bytes // 1_000_000,
            )
