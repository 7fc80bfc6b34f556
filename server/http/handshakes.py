"""Connections with TLS: nobody is a client before his handshake is done, and handshakes cannot fill the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from server.http.accepting import NO_TURNS, Accepting, Turns
from server.http.paced_transport import PacedProtocol

# Handshakes take milliseconds. For one more the oldest is cut off, so those who say nothing keep nobody out.
MAX_HANDSHAKES = 128


class Handshakes:
    """Accepts connections, and gives each to a protocol once its handshake is done. Belongs to the event loop.

    What uvicorn closes like a server of asyncio.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        *,
        seconds: float,
        max_handshakes: int = MAX_HANDSHAKES,
        at_once: int = MAX_HANDSHAKES,
        turns: Turns = NO_TURNS,
    ) -> None:
        """`context` is asked for each connection: certificates are renewed. The last two are for `Accepting`."""
        self._make_protocol = make_protocol
        self._context = context
        self._seconds = seconds
        self._max_handshakes = max_handshakes
        self._loop = asyncio.get_running_loop()
        # The oldest first.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._accepting = Accepting(listener, self._begin, at_once=at_once, turns=turns)

    def close(self) -> None:
        """Accept nobody else, and cut off who is not through."""
        self._accepting.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, connection: socket.socket) -> None:
        if len(self._tasks) >= self._max_handshakes:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._shake(connection))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _make_paced(self) -> asyncio.Protocol:
        return PacedProtocol(self._make_protocol(), closing_seconds=self._seconds)

    async def _shake(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        # Whatever goes wrong is the client's: he speaks no TLS, has no certificate that is known, or has hung up.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._loop.connect_accepted_socket(
                self._make_paced,
                connection,
                ssl=self._context(),
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=self._seconds,
            )
            return
        connection.close()
