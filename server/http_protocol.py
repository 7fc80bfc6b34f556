"""HTTP/1.1 as uvicorn speaks it, and as the clients of model servers need it.

Refusals that never reach the application are JSON too; a client that offers an upgrade (Java's does, to HTTP/2) or has
closed his side after asking gets his answer; one that does not go on sending is not waited for: the head has
RECEIVE_SECONDS in all, the body as long after each of its bytes.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

RECEIVE_SECONDS = 30.0
MAX_HEAD_BYTES = 64 * 1024

_TOO_LARGE = f"the headers are larger than {MAX_HEAD_BYTES} bytes"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class JsonHttpProtocol(HttpToolsProtocol):
    """One connection. Belongs to the event loop."""

    receive_seconds = RECEIVE_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_head_due = True
        self._is_begun = False
        self._head_bytes = 0
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._be_patient()

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_content()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_head_due:
            data = data if self._head_bytes else _without_upgrade(data)
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            self._be_content()
            return
        if not self._is_head_due and self._unanswered() is not None:
            self._be_content()
        if self._is_begun or self._head_bytes:
            self._be_patient()
        if self._is_head_due and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """True keeps our side open: he has asked completely, and waits for the answer."""
        cycle = self._unanswered()
        if cycle is None or cycle.more_body:
            return None
        cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        self._is_begun = True
        self._be_content()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_head_due = False
        # Most of what came may be body, so look closer.
        if self._head_bytes > MAX_HEAD_BYTES and self._count_head() > MAX_HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)
            raise ValueError(_TOO_LARGE)
        super().on_headers_complete()

    def _count_head(self) -> int:
        """With the colon, the blank and the end of each line, as it came."""
        request_line = b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        return len(request_line) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_message_complete(self) -> None:
        self._is_head_due, self._is_begun, self._head_bytes = True, False, 0
        self._be_content()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # Nothing comes after the head of an answer to HEAD.
        if cycle.scope["method"] != "HEAD":
            cycle.transport = _JoiningTransport(self.transport)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        # What was refused in the middle of parsing ends that with an error, too.
        if not self.transport.is_closing():
            self._refuse(400, msg.rstrip("."))

    def _unsupported_upgrade_warning(self) -> None:
        """Only CONNECT comes here, and is refused as a method; uvicorn would advise to install WebSockets."""

    def _unanswered(self) -> RequestResponseCycle | None:
        """The request that came last, while its answer is not complete."""
        cycle: Any = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _be_patient(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self.receive_seconds, self._lose_patience)

    def _be_content(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        self._patience = None
        cycle = self._unanswered()
        if self.pipeline or (cycle is not None and not cycle.more_body):
            # He waits for us: what came after his request is looked at when it is answered.
            self._be_patient()
            return
        is_answered = cycle.response_started if cycle is not None else not self._is_head_due
        if is_answered or not self._is_begun:
            # An answer would be taken for that of another request.
            self.transport.close()
        elif not self.transport.is_closing():
            self._refuse(408, f"the rest of the request did not come within {self.receive_seconds:g} seconds")

    def _refuse(self, status: int, problem: str) -> None:
        body = orjson.dumps({"error": problem})
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()


class _JoiningTransport:
    """Where uvicorn writes one answer: its head goes out with the body, in one system call and one packet, not two."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is not None:
            self._transport.write(self._head + data)
            self._head = b""
        elif data == _CONTINUE:
            self._transport.write(data)
        else:
            self._head = data

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _without_upgrade(data: bytes) -> bytes:
    """A server may ignore the wish, but the parser would then take the body for the other protocol and drop it."""
    head, blank, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + blank + rest if b"pgrade" in head else data
