"""Says, again and again, which parameter server lets whom wait, and for how long.

Nobody is made to give up: a server that hangs (a disk that does not answer, a stopped process) may go on, and then
nothing was lost; one that is dead is told by TensorFlow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hotdelta.logs import event

logger = logging.getLogger(__name__)

SLOW_SECONDS = 30.0
POLL_SECONDS = 0.5
IDLE_SECONDS = 60.0


@dataclass(eq=False, slots=True)
class _Wait:
    server: str
    thread: str
    since: float
    is_said: bool = False
    said_at: float = 0.0


class Patience:
    """Those who wait for servers now, on whatever thread. Its own thread ends when nobody has waited for a while."""

    def __init__(self) -> None:
        self._guard_waits = threading.Lock()
        self._waits: set[_Wait] = set()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def waiting_for(self, server: str) -> Iterator[None]:
        wait = _Wait(server, threading.current_thread().name, time.monotonic())
        with self._guard_waits:
            self._waits.add(wait)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="hotdelta-patience", daemon=True)
                self._watcher.start()
        try:
            yield
        finally:
            with self._guard_waits:
                self._waits.discard(wait)
            if wait.is_said:
                _say(logging.INFO, "waiting for a parameter server is over", wait)

    def _watch(self) -> None:
        pause, idle_since = threading.Event(), time.monotonic()
        while True:
            pause.wait(min(POLL_SECONDS, SLOW_SECONDS))
            now = time.monotonic()
            with self._guard_waits:
                idle_since = now if self._waits else idle_since
                if now - idle_since > IDLE_SECONDS:
                    self._watcher = None
                    return
                slow = [wait for wait in self._waits if now - max(wait.since, wait.said_at) >= SLOW_SECONDS]
            for wait in slow:
                wait.is_said, wait.said_at = True, now
                _say(logging.WARNING, "still waiting for a parameter server", wait)


def _say(level: int, phrase: str, wait: _Wait) -> None:
    waited = round(time.monotonic() - wait.since, 1)
    event(logger, level, phrase, server=wait.server, waited_seconds=waited, thread=wait.thread)


PATIENCE = Patience()
