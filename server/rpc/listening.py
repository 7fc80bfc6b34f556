"""The gRPC port: opened beside the HTTP one, in the same event loop, and drained when that one is.

In the event loop rather than in threads of its own, because requests that wait, for their position or for the model,
wait there: none of them holds a thread, and all protocols share the batches.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc.aio

from hotdelta.errors import ConfigurationError
from server.rpc.calls import Calls
from server.settings import Settings
from server.tls import TlsFiles
from server.watched_files import WatchedFiles

# Clients ask whether a connection is alive; by default more often than each 5 minutes is taken for abuse.
_MIN_PING_MS = 5_000


class RpcServer:
    """Answers calls from `start` until `stop`. Belongs to the event loop."""

    def __init__(self, settings: Settings, calls: Calls) -> None:
        self._settings = settings
        self._calls = calls
        self._tls = TlsFiles.of(settings)
        self._server: Any = None
        self._stopping: asyncio.Task[None] | None = None
        self.address = ""

    @property
    def url(self) -> str:
        return f"{'grpc' if self._tls is None else 'grpcs'}://{self.address}"

    async def start(self) -> None:
        """Raises ConfigurationError when the address cannot be had, or the files for TLS cannot be used."""
        port = self._settings.grpc_port or 0
        host = _numeric_host(self._settings.host, port)
        server = grpc.aio.server(
            handlers=(self._calls,),
            options=_options(self._settings),
            maximum_concurrent_rpcs=self._settings.max_connections,
        )
        try:
            if self._tls is None:
                bound = server.add_insecure_port(f"{host}:{port}")
            else:
                bound = server.add_secure_port(f"{host}:{port}", _credentials(self._tls))
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {host} port {port} for gRPC: {error}",
                hint="give another --grpc-port (0 chooses a free one), or stop what uses it",
            ) from error
        await server.start()
        self._server, self.address = server, f"{host}:{bound}"

    def leave(self) -> None:
        """No new calls from now on; those in flight have `stop_seconds` to finish."""
        if self._stopping is None and self._server is not None:
            self._calls.end_streams()
            self._stopping = asyncio.create_task(self._server.stop(self._settings.stop_seconds))

    async def stop(self) -> None:
        """Returns when all calls have ended."""
        self.leave()
        if self._stopping is not None:
            await self._stopping


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """What the port proves its identity with, and demands of clients: always what the files say now."""
    watched = WatchedFiles(tls.paths, lambda: _certificates(tls))
    known = [watched.current()]

    def renewed() -> Any:
        """At each handshake, one at a time. None: nothing is new."""
        newest = watched.current()
        if newest is known[0]:
            return None
        known[0] = newest
        return newest

    return grpc.dynamic_ssl_server_credentials(
        known[0], renewed, require_client_authentication=tls.client_ca is not None
    )


def _certificates(tls: TlsFiles) -> Any:
    key, certificate, client_ca = tls.contents()
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)


def _numeric_host(host: str, port: int) -> str:
    """The one address that HTTP listens on too: a name may have several."""
    *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return f"[{address[0]}]" if ":" in str(address[0]) else str(address[0])


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        # Of a compressed message, what it becomes counts.
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share its clients without a word.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", round(settings.client_timeout_seconds * 1000)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_PING_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
