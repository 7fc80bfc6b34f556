"""Passes on to the model's process what a front-end does not answer by itself: orders, pages, metrics, streams.

For each such request there is a connection of its own, given to the model's process by a pair of sockets: there is no
address that anybody else could connect to. These requests are rare.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable

import httptools
import orjson
from starlette.types import Receive, Scope, Send

from hotdelta.errors import OverloadedError
from server.http.error_responses import error_response

# What belongs to one connection, and not to what is said on it.
_OF_CONNECTION = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_FIRST_FINAL_STATUS = 200
_READ_AHEAD_BYTES = 256 * 1024


class Forwarding:
    """An ASGI application whose answers are those of the model's process. `handover`: the way connections take."""

    def __init__(self, handover: socket.socket) -> None:
        self._handover = handover

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            connection, writing = self._connect(scope)
        except OSError:
            error = OverloadedError("too many requests are being passed on", hint="try again")
            await error_response(error)(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_unix_connection(lambda: _Exchange(scope["method"]), sock=connection)
        asking = loop.create_task(_ask(exchange, writing, scope, receive))
        try:
            await exchange.relay(send)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await asking
            writing.close()
            exchange.close()

    def _connect(self, scope: Scope) -> tuple[socket.socket, socket.socket]:
        """Our end of a new connection to the model's process, for reading and for writing. Raises OSError.

        Apart: when the answer is there before all of the request is taken, writing fails, and reading must not.
        """
        ours, theirs = socket.socketpair()
        introduction = orjson.dumps([scope["client"], scope["server"], scope["scheme"]])
        with theirs:
            try:
                socket.send_fds(self._handover, [introduction], [theirs.fileno()])
                writing = ours.dup()
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        writing.setblocking(False)
        return ours, writing


async def _ask(exchange: _Exchange, writing: socket.socket, scope: Scope, receive: Receive) -> None:
    """The request, as it comes; when the client hangs up, so do we. Raises OSError when no more of it is taken."""
    loop = asyncio.get_running_loop()
    headers = [(name, value) for name, value in scope["headers"] if name not in _OF_CONNECTION]
    has_length = any(name == b"content-length" for name, _ in headers)
    is_chunked = not has_length and any(name == b"transfer-encoding" for name, _ in scope["headers"])
    if is_chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    await loop.sock_sendall(writing, _head(scope, headers))
    if any(name == b"expect" for name, _ in headers):
        # Asking for the body would tell the client to send it, also one that nobody wants.
        await exchange.wanted.wait()
    has_more = True
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            exchange.close()
            return
        body: bytes = message.get("body", b"")
        if body:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if is_chunked else body
            await loop.sock_sendall(writing, piece)
        if has_more and not message.get("more_body", False):
            has_more = False
            if is_chunked:
                await loop.sock_sendall(writing, b"0\r\n\r\n")


def _head(scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    target = path + b"?" + query if query else path
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (scope["method"].encode(), target, lines)


class _Exchange(asyncio.Protocol):
    """One connection to the model's process: its answer is read as fast as the client takes it."""

    def __init__(self, method: str) -> None:
        self._is_head = method == "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._start: dict[str, object] | None = None
        self._body = bytearray()
        self._is_final = False
        self._is_complete = False
        self._has_come = asyncio.Event()
        # The body, by a client that has asked before he sends it.
        self.wanted = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._has_come.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        if len(self._body) > _READ_AHEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._has_come.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_final = status >= _FIRST_FINAL_STATUS
        if not self._is_final:
            self._headers = []
            self.wanted.set()
            return
        headers = [header for header in self._headers if header[0] not in _OF_CONNECTION]
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        self._is_complete = self._is_head

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_complete = self._is_final

    async def relay(self, send: Send) -> None:
        """The answer, as it comes. One that ends before it is complete is for the client cut off, too."""
        while self._start is None and self._transport is not None:
            await self._wait()
        if self._start is None:
            return
        await send(self._start)
        while not self._is_complete and self._transport is not None:
            if self._body:
                await send({"type": "http.response.body", "body": self._taken(), "more_body": True})
            else:
                await self._wait()
        if self._is_complete:
            await send({"type": "http.response.body", "body": self._taken(), "more_body": False})

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._has_come.clear()
        await self._has_come.wait()

    def _taken(self) -> bytes:
        body = bytes(self._body)
        self._body.clear()
        if self._transport is not None:
            self._transport.resume_reading()
        return body
