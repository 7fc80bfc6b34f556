"""Says, again and again, which servers let whom wait, for how long, and which of them do not answer at all.

Nobody is made to give up: a server that hangs (a disk that does not answer, a stopped process) may go on, and then
nothing was lost; one that is dead is told by TensorFlow, or waited for until it is back.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hotdelta.logs import event

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
LOOK_SECONDS = 20.0


def silent_servers(addresses: Mapping[str, str]) -> dict[str, str]:
    """Why those that are silent are. One after the other, and only as many as there is time for."""
    found: dict[str, str] = {}
    until = time.monotonic() + LOOK_SECONDS
    for server, address in addresses.items():
        reason = why_silent(address) if time.monotonic() < until else None
        if reason is not None:
            found[server] = reason
    return found


def why_silent(address: str) -> str | None:
    """None when it answers. A gRPC server speaks first; of one that is stopped only its system accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as connection:
            return None if connection.recv(1) else "it hangs up"
    except TimeoutError:
        return "it says nothing"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except ValueError:
        return f"{address!r} is no address"


SLOW_SECONDS = 30.0
POLL_SECONDS = 0.5
IDLE_SECONDS = 60.0

Servers = Callable[[], Mapping[str, str]]


@dataclass(eq=False, slots=True)
class _Wait:
    """`servers` finds the addresses of those that are waited for, empty where they are not known."""

    servers: Servers
    thread: str
    since: float
    due_seconds: float
    is_said: bool = False


class Patience:
    """Those who wait for servers now, on whatever thread. Its own thread ends when nobody has waited for a while."""

    def __init__(self) -> None:
        self._guard_waits = threading.Lock()
        self._waits: set[_Wait] = set()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def waiting_for(self, servers: Servers) -> Iterator[None]:
        """Around a call that may wait for servers: one that takes long is told, each time it took twice as long."""
        wait = _Wait(servers, threading.current_thread().name, time.monotonic(), SLOW_SECONDS)
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
                _say("the cluster answers again", wait, wait.servers())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Around what this thread does by itself, in the middle of a call that may wait for servers."""
        thread = threading.current_thread().name
        with self._guard_waits:
            own = {wait for wait in self._waits if wait.thread == thread}
            self._waits -= own
        try:
            yield
        finally:
            with self._guard_waits:
                for wait in own:
                    wait.since = time.monotonic()
                self._waits |= own

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
                slow = [wait for wait in self._waits if now - wait.since >= wait.due_seconds]
            for wait in slow:
                self._report(wait)

    def _report(self, wait: _Wait) -> None:
        """Looking takes its time, in which the wait may end: then there is nothing to say."""
        servers = wait.servers()
        silent = _silent(servers)
        with self._guard_waits:
            if wait in self._waits:
                wait.is_said = True
                wait.due_seconds *= 2
                _say("still waiting for the cluster", wait, servers, silent=silent)


def _silent(servers: Mapping[str, str]) -> str:
    known = {server: address for server, address in servers.items() if address}
    found = [f"{server} ({reason})" for server, reason in silent_servers(known).items()]
    return ", ".join(found) or ("none" if known else "unknown")


def _say(phrase: str, wait: _Wait, servers: Mapping[str, str], **fields: str) -> None:
    waited = round(time.monotonic() - wait.since, 1)
    named = ", ".join(servers)
    event(
        logger,
        logging.WARNING,
        phrase,
        servers=named,
        **fields,
        waited_seconds=waited,
        thread=wait.thread,
    )


PATIENCE = Patience()
