"""Connections with TLS: nobody is a client before his handshake is done, and handshakes cannot fill the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

from hotdelta.logs import event
from server.http.paced_transport import PacedProtocol

logger = logging.getLogger(__name__)

# Handshakes take milliseconds. For one more the oldest is cut off, so those who say nothing keep nobody out.
MAX_HANDSHAKES = 128
_ACCEPT_AGAIN_SECONDS = 1.0
_BACKLOG = 2048


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
    ) -> None:
        """`context` is asked for each connection: certificates are renewed."""
        self._listener = listener
        self._make_protocol = make_protocol
        self._context = context
        self._seconds = seconds
        self._max_handshakes = max_handshakes
        self._loop = asyncio.get_running_loop()
        # The oldest first.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._go_on()

    def close(self) -> None:
        """Accept nobody else, and cut off who is not through."""
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _go_on(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(self._max_handshakes):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # What has files open closes them some time. Asked again at once, the loop would do nothing else.
                event(logger, logging.ERROR, "no connection can be accepted", reason=error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._go_on)
                return
            self._begin(connection)

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
