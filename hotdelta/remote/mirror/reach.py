"""Whether a store answers, since when it does not, and how long to wait before it is asked again."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from hotdelta.errors import StoreError
from hotdelta.logs import event
from hotdelta.remote.mirror.settings import MirrorSettings

logger = logging.getLogger(__name__)

# Of many replicas not all ask at the same moment.
_JITTER = 0.2


class Reach:
    """Written by the thread that asks, read by any. `wall_clock` tells people when, `jitter` is from 0 to 1."""

    def __init__(
        self,
        settings: MirrorSettings,
        address: str,
        *,
        poll_seconds: float,
        wall_clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._address = address
        self._poll_seconds = poll_seconds
        self._wall_clock = wall_clock
        self._jitter = jitter
        self._failed_in_a_row = 0
        self._since = wall_clock()
        self.answered_at: float | None = None
        self.problem = ""
        self.failures = 0
        """Requests that failed, of all kinds."""

    @property
    def is_reached(self) -> bool:
        """Whether the last question was answered."""
        return self.answered_at is not None and not self._failed_in_a_row

    def answered(self) -> None:
        now = self._wall_clock()
        if self._failed_in_a_row:
            event(
                logger,
                logging.INFO,
                "the store answers again",
                store=self._address,
                seconds=now - self._since,
            )
        self.answered_at, self._failed_in_a_row, self.problem = now, 0, ""

    def failed(self, error: StoreError) -> None:
        """Said once, until the store answers again or refuses us instead."""
        self.failures += 1
        is_news = not self._failed_in_a_row or (not error.retryable and error.message not in self.problem)
        if not self._failed_in_a_row:
            self._since = self.answered_at if self.answered_at is not None else self._wall_clock()
        self._failed_in_a_row += 1
        self.problem = str(error)
        if is_news:
            level = logging.WARNING if error.retryable else logging.ERROR
            event(logger, level, "the store does not answer", store=self._address, reason=error)

    def pause_seconds(self) -> float:
        """Longer with every failure in a row, and never the same for two replicas."""
        pause = self._poll_seconds * 2.0 ** min(self._failed_in_a_row, 30)
        longest = max(self._settings.retry_seconds, self._poll_seconds)
        return min(pause, longest) * (1 - _JITTER * self._jitter())
