"""Takes new connections from a listening socket, where asyncio's own way takes too many at once or too early."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from hotdelta.logs import event

logger = logging.getLogger(__name__)

_ACCEPT_AGAIN_SECONDS = 1.0
_ASIDE_SECONDS = 0.001
_BACKLOG = 2048


class Turns(Protocol):
    """Of processes that accept from the same socket."""

    def is_of_others(self) -> bool:
        """Whether somebody else should have the next connection, and is left some time to take it."""

    def note_taken(self) -> None:
        """We have taken one."""


class NoTurns:
    """Nobody else accepts from this socket."""

    def is_of_others(self) -> bool:
        return False

    def note_taken(self) -> None:
        return


NO_TURNS = NoTurns()


class Accepting:
    """Gives each connection to `begin`, at most `at_once` in one turn of the event loop, to which it belongs."""

    def __init__(
        self,
        listener: socket.socket,
        begin: Callable[[socket.socket], None],
        *,
        at_once: int,
        turns: Turns = NO_TURNS,
    ) -> None:
        self._listener = listener
        self._begin = begin
        self._at_once = at_once
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._go_on()

    def close(self) -> None:
        """Accept nobody else."""
        self._is_closed = True
        self._loop.remove_reader(self._listener)

    def _go_on(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept_in_turn)

    def _accept_in_turn(self) -> None:
        if self._turns.is_of_others():
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_ASIDE_SECONDS, self._insist)
        else:
            self._accept()

    def _insist(self) -> None:
        """Whoever is still waiting now has waited long enough."""
        if not self._is_closed:
            self._go_on()
            self._accept()

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno == errno.EINVAL:
                    # Whoever shares this socket has shut it down: nobody comes any more.
                    self.close()
                    return
                # What has files open closes them some time. Asked again at once, the loop would do nothing else.
                event(logger, logging.ERROR, "no connection can be accepted", reason=error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._go_on)
                return
            self._turns.note_taken()
            self._begin(connection)
