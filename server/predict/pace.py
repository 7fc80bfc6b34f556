"""Decides whether calls of the model are so short that the event loop makes them itself. Calls nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

# What a hand-over to a thread and back costs, when both threads want Python's lock, is of this size.
QUICK_SECONDS = 0.0003
# A call that was held up by something else counts as this long: one of them alone changes no mind.
_LONGEST_SECONDS = 4 * QUICK_SECONDS
_WEIGHT = 1 / 8
_CALLS_TO_KNOW = 16
_FIRST_REST_SECONDS = 1.0
_LONGEST_REST_SECONDS = 600.0


class Pace:
    """How long calls of one signature take, of requests that can share one. Belongs to the event loop.

    In a thread only the processor time of a call is known to be its own; in the event loop all of the time counts,
    because everybody waits for it. A model that seems quick in a thread and is not (it waits for something) holds up
    the loop for a few calls, and then less and less often.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = QUICK_SECONDS
        self._known_calls = 0
        self._rest_seconds = _FIRST_REST_SECONDS
        self._rests_until = 0.0
        self._quick_since = 0.0
        self.is_quick = False

    def observe_in_thread(self, processor_seconds: float) -> None:
        self._note(processor_seconds)
        self._known_calls += 1
        if (
            self._known_calls >= _CALLS_TO_KNOW
            and self._seconds < QUICK_SECONDS / 2
            and self._clock() >= self._rests_until
        ):
            self.is_quick, self._quick_since = True, self._clock()

    def observe_in_loop(self, seconds: float) -> None:
        self._note(seconds)
        if self._seconds > QUICK_SECONDS:
            now = self._clock()
            # It was right for a long time: what came now is something new.
            was_right = now - self._quick_since > 10 * self._rest_seconds
            self._rest_seconds = (
                _FIRST_REST_SECONDS if was_right else min(2 * self._rest_seconds, _LONGEST_REST_SECONDS)
            )
            self._rests_until = now + self._rest_seconds
            self.is_quick, self._known_calls = False, 0

    def _note(self, seconds: float) -> None:
        self._seconds += _WEIGHT * (min(seconds, _LONGEST_SECONDS) - self._seconds)
