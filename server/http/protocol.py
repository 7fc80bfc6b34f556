"""HTTP/1.1 as uvicorn speaks it, and as the clients of model servers need it.

Refusals that never reach the application are JSON too. A client that offers an upgrade (Java's does, to HTTP/2), or has
closed its side after asking, gets its answer. A client that stops in the middle is not waited for: the head must arrive
within `client_timeout_seconds`; a body, and the taking of an answer, may go on as long as each such time brings some
progress, but a client that is late with them gives way when there is no place for others.

One request at a time: of what a client sends before it has its answer, one read is kept as it came; the rest stays with
the operating system, whose buffers make the client wait.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.connection_limits import ConnectionLimits
from server.http.uvicorn_internals import (
    HIGH_WATER_LIMIT,
    STATUS_LINE,
    FlowControl,
    OpenHttpProtocol,
    RequestResponseCycle,
)

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
RETRY_AFTER_SECONDS = 1

# The parser cannot be stopped: it makes requests of all that it is given, and no more than 227 fit in here.
_SLICE_BYTES = 4096

_TOO_LARGE = f"the headers are larger than {MAX_HEAD_BYTES} bytes"
_TOO_MANY = f"there are more than {MAX_HEADERS} headers"
_TRAILERS_TOO_LARGE = f"trailers or chunk extensions are larger than {MAX_HEAD_BYTES} bytes"
_TOO_MANY_TRAILERS = f"there are more than {MAX_HEADERS} trailers"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_VERSIONS = ("1.1", "1.0")
_NOTED = frozenset((b"expect", b"transfer-encoding"))


class JsonHttpProtocol(OpenHttpProtocol):
    """One connection. Belongs to the event loop."""

    flow: _Flow  # type: ignore[mutable-override]

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._is_head_due = True
        self._is_begun = False
        self._declined: bytes | None = None
        self._answering: RequestResponseCycle | None = None
        self._refusal: tuple[int, str] | None = None
        # Since the request began, or since the last byte of its body.
        self._bytes_without_body = 0
        self._held = b""
        self._untaken_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self._has_body_come = False
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        if len(self.connections) > self._limits.max_connections and not self._make_room():
            self._limits.refusals.add()
            self._refuse(503, f"{self._limits.max_connections} connections are open. try again later")
        else:
            self._be_patient()

    def _make_room(self) -> bool:
        """Hang up on whichever client is idle longest (its next request opens a new connection), else on a late one."""
        others: list[Any] = [other for other in self.connections if other is not self]
        idle = [other for other in others if other.is_idle]
        if idle:
            min(idle, key=lambda other: other.timeout_keep_alive_task.when()).timeout_keep_alive_handler()
            return True
        return self._limits.buffered.late.remove_first()

    @property
    def is_idle(self) -> bool:
        """Whether the client has taken all its answers. One that has not would stay for a while after a hang-up."""
        is_waiting = self.timeout_keep_alive_task is not None and not self.transport.is_closing()
        return is_waiting and not self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_content()
        self._count_untaken(0)
        if self._answering is not None:
            # uvicorn tells only the request that came last.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.stop_idle_timer()
        if self._held or self._is_asked():
            self._hold(self._held + data)
            return
        if len(data) <= _SLICE_BYTES:
            self._feed(data)
        else:
            self._feed_in_slices(data)
        if self._refusal is not None or self.transport.is_closing():
            self._be_content()
            return
        if self._is_begun or self._bytes_without_body:
            self._be_patient()
        elif self.timeout_keep_alive_task is None and self._unanswered() is None:
            # This was the rest of a body that came after its answer.
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self._hang_up)

    def _is_asked(self) -> bool:
        """Whether the request is complete and its answer is not."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _hold(self, data: bytes) -> None:
        self._held = data
        self.flow.is_held = True
        self.flow.pause_reading()

    def _feed_in_slices(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE_BYTES):
            if self._refusal is not None or self.transport.is_closing():
                return
            if self._is_asked():
                self._hold(data[start:])
                return
            self._feed(data[start : start + _SLICE_BYTES])

    def _feed(self, data: bytes) -> None:
        self._bytes_without_body += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            if self._declined is not None:
                self._read_again(self._declined + data[stop.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "Invalid HTTP request received")
        else:
            if self._bytes_without_body > MAX_HEAD_BYTES:
                self._refuse(431, _TOO_LARGE if self._is_head_due else _TRAILERS_TOO_LARGE)
            elif not self._is_head_due and len(self.headers) > MAX_HEADERS:
                self._refuse(431, _TOO_MANY_TRAILERS)

    def _read_again(self, data: bytes) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._declined, self._bytes_without_body = None, 0
        self._feed(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Returns True, which keeps our side open, when the request is complete and the client waits for the answer."""
        if not self._is_asked():
            self._hang_up()
            return None
        self.cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        self._is_begun = True
        self._be_content()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _NOTED and self._is_head_due:
            self._note(name, value)
        self.headers.append((name, value))

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        # A second one, or one beside a Content-Length, is an error for the parser.
        elif value.strip().lower() != b"chunked" or self.parser.get_http_version() != "1.1":
            self._refuse_head(501, "this Transfer-Encoding is not known. send the body as it is, or chunked")

    def on_headers_complete(self) -> None:
        # Most of what came may be body, so look closer.
        if self._bytes_without_body > MAX_HEAD_BYTES and self._count_head() > MAX_HEAD_BYTES:
            self._refuse_head(431, _TOO_LARGE)
        if len(self.headers) > MAX_HEADERS:
            self._refuse_head(431, _TOO_MANY)
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._declined = self._head_without_upgrade()
            return
        super().on_headers_complete()
        self._is_head_due = False
        # What comes now are trailers, which must not be taken for headers.
        self.headers = []
        if self.scope["http_version"] not in _VERSIONS:
            self._refuse_head(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")

    def _head_without_upgrade(self) -> bytes:
        """A server may ignore an upgrade, but the parser would take the body for the other protocol and drop it."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))

    def _refuse_head(self, status: int, problem: str) -> None:
        self._refuse(status, problem)
        raise ValueError(problem)

    def _count_head(self) -> int:
        """Its size as it came, with the colon, the blank and the end of each line."""
        request_line = b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        return len(request_line) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        self._has_body_come = True
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._declined is not None:
            return
        self._is_head_due, self._is_begun, self._bytes_without_body = True, False, 0
        self._be_content()
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        self._answering = None
        self._renew_patience()
        super().on_response_complete()
        if self.transport.is_closing():
            self._hang_up()
        elif is_last and self.flow.is_held:
            self._go_on()

    def _go_on(self) -> None:
        """Continue with what the client sent while it waited for an answer."""
        if self._refusal is not None:
            self._give_refusal(*self._refusal)
        elif self._held and not self.flow.write_paused and not self._is_asked():
            held, self._held = self._held, b""
            self.flow.is_held = False
            self.data_received(held)
        self.flow.resume_reading()

    def pause_writing(self) -> None:
        """The client does not take its answer. Until it does, nothing else that it sends is read."""
        super().pause_writing()
        self.flow.pause_reading()
        self._expect_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.transport.is_closing():
            self._expect_taking()
        else:
            self._count_untaken(0)
            self._go_on()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def start_answer(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        # The body has its own time, also when it had to wait for the answers before it.
        self._renew_patience()
        # Nothing comes after the head of an answer to HEAD.
        if cycle.scope["method"] != "HEAD":
            cycle.transport = _JoiningTransport(self.transport)  # type: ignore[assignment]
        if cycle.waiting_for_100_continue:
            app = _closing_unless_continued(cycle, app)
        super().start_answer(cycle, app)

    def _unanswered(self) -> RequestResponseCycle | None:
        """The request that came last, while its answer is not complete."""
        cycle: Any = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _be_patient(self) -> None:
        if self._patience is None:
            self._has_body_come = False
            self._patience = self.loop.call_later(self._limits.client_timeout_seconds, self._lose_patience)

    def _be_content(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            self._limits.buffered.late.discard(self._give_way)

    def _renew_patience(self) -> None:
        if self._patience is not None:
            self._be_content()
            self._be_patient()

    def _lose_patience(self) -> None:
        self._be_content()
        if self.pipeline or self._is_asked():
            # He waits for us: what came after his request is looked at when it is answered.
            self._be_patient()
        elif self._has_body_come and self._unanswered() is not None:
            self._be_patient()
            self._limits.buffered.late.add(self._give_way)
        elif not self._is_begun:
            # An answer would be taken for that of another request.
            self._hang_up()
        else:
            self._refuse_late()

    def _refuse_late(self) -> None:
        seconds = self._limits.client_timeout_seconds
        self._refuse(408, f"the rest of the request did not come within {seconds:g} seconds")

    def _give_way(self) -> None:
        if self._taking is not None:
            self.transport.abort()
        else:
            self._refuse_late()

    def _refuse(self, status: int, problem: str) -> None:
        """Refuse the last request and all that follow: the connection is of no use then. The first refusal counts."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = status, problem
        self._be_content()
        self._hold(b"")
        if self.pipeline and not self._is_head_due:
            # It was in order so far and waits behind others: nobody has begun to answer it, and nobody will.
            self.pipeline.popleft()
            self._is_head_due = True
        self._give_refusal(status, problem)

    def _give_refusal(self, status: int, problem: str) -> None:
        """Wait until earlier requests have their answers: the refusal would be taken for one of those."""
        is_head_known = not self._is_head_due
        if self.pipeline or (self._answering and not (is_head_known and self._answering is self.cycle)):
            return
        if not is_head_known or (self._answering and not self._answering.response_started):
            body = orjson.dumps({"error": problem})
            retry = f"retry-after: {RETRY_AFTER_SECONDS}\r\n" if status == 503 else ""
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection when the client has taken what was written, or takes too long to do so."""
        self.transport.close()
        if self._taking is None and self.transport.get_write_buffer_size():
            self._expect_taking()

    def _expect_taking(self) -> None:
        self._count_untaken(self.transport.get_write_buffer_size())
        self._taking = self.loop.call_later(self._limits.client_timeout_seconds, self._check_taking)

    def _check_taking(self) -> None:
        if self.transport.get_write_buffer_size() >= self._untaken_bytes:
            self.transport.abort()
        else:
            self._expect_taking()
            self._limits.buffered.late.add(self._give_way)

    def _count_untaken(self, size: int) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
            self._limits.buffered.late.discard(self._give_way)
        self._limits.buffered.add(size - self._untaken_bytes)
        self._untaken_bytes = size


def _closing_unless_continued(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Close after an answer that was given in place of 100 Continue.

    The client may never send that body, and its next request would be read as the body.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_or_close(message: Message) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_or_close)

    return run


class _Flow(FlowControl):
    """Flow control that does not read on while a request is held or an answer is not taken, as uvicorn's would."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held and not self.write_paused:
            super().resume_reading()


class _JoiningTransport:
    """Where uvicorn writes one answer: its head goes out with the body, in one system call and one packet, not two."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._head is not None:
            self._transport.write(self._head + data)
            self._head = b""
        elif data == _CONTINUE:
            self._transport.write(data)
        else:
            self._head = data

    def close(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
