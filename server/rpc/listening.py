"""The gRPC port: opened beside the HTTP one, in the same event loop, and drained when that one is.

In the event loop rather than in threads of its own, because requests that wait, for their position or for the model,
wait there: none of them holds a thread, and all protocols share the batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Protocol

from server.http.connection_limits import BufferedBytes, Refusals
from server.http.handshakes import Handshakes
from server.http.listening import address_of, allow_files, bind
from server.rpc.calls import Calls
from server.rpc.http2.connection import Connection, Port
from server.settings import Settings
from server.tls import TlsFiles
from server.watched_files import WatchedFiles

_BACKLOG = 2048
_PROTOCOLS = ("h2",)


class _Listening(Protocol):
    def close(self) -> None: ...


class RpcServer:
    """Answers calls from `start` until `stop`. Belongs to the event loop."""

    def __init__(self, settings: Settings, calls: Calls, buffered: BufferedBytes) -> None:
        """`buffered` counts what waits, with that of HTTP."""
        self._settings = settings
        self._calls = calls
        self._tls = TlsFiles.of(settings)
        self._port = Port(
            calls.respond,
            max_message_bytes=settings.max_body_bytes,
            max_calls=settings.max_connections,
            max_connections=settings.max_connections,
            client_timeout_seconds=settings.client_timeout_seconds,
            buffered=buffered,
            refusals=Refusals("--max-connections", settings.max_connections),
        )
        self._listening: _Listening | None = None
        self._socket: socket.socket | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.address = ""

    @property
    def url(self) -> str:
        return f"{'grpc' if self._tls is None else 'grpcs'}://{self.address}"

    async def start(self) -> None:
        """Raises ConfigurationError when the address cannot be had, or the files for TLS cannot be used."""
        settings = self._settings
        # Beside those of HTTP.
        allow_files(2 * settings.max_connections)
        listener = bind(settings.host, settings.grpc_port or 0, flag="--grpc-port")
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(self._connection, sock=listener, backlog=_BACKLOG)
        else:
            tls = self._tls
            contexts = WatchedFiles(tls.paths, lambda: tls.context(_PROTOCOLS))
            seconds = settings.client_timeout_seconds
            self._listening = Handshakes(listener, self._connection, contexts.current, seconds=seconds)
        self._socket = listener
        self.address = address_of(listener)

    def leave(self) -> None:
        """No new calls from now on; those in flight have `stop_seconds` to finish."""
        if self._stopping is None and self._listening is not None:
            self._port.is_leaving = True
            self._listening.close()
            if self._socket is not None:
                # Of handshakes nobody else does.
                self._socket.close()
            self._calls.end_streams()
            for connection in list(self._port.connections):
                connection.leave()
            self._stopping = asyncio.create_task(self._drain())

    async def stop(self) -> None:
        """Returns when all calls have ended."""
        self.leave()
        if self._stopping is not None:
            await self._stopping

    def _connection(self) -> Connection:
        return Connection(self._port)

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_seconds):
                while self._port.connections:
                    self._port.has_lost.clear()
                    await self._port.has_lost.wait()
        for connection in list(self._port.connections):
            connection.abort()
