"""One call: the messages that come, in order, and what is answered. Of its message it knows the length."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote

from hotdelta.errors import BodyTooLargeError, HotdeltaError, RequestError
from server.rpc.http2.frames import NUMBER
from server.rpc.http2.header_blocks import Headers, block_of, metadata_of
from server.rpc.status_codes import Metadata, StatusCode

if TYPE_CHECKING:
    from server.rpc.http2.connection import Connection

_PREFIX_BYTES = 5
_FORMATS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ENCODINGS = ("identity", *_FORMATS)
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# What grpc-message may hold as it is.
_PLAIN = "".join(chr(byte) for byte in range(0x20, 0x7F) if chr(byte) != "%")
_DONE = block_of([("grpc-status", "0")])


class Stream:
    """Belongs to the event loop. Iterating over it gives the messages of the client.

    `window`: as many bytes its client takes. `pending`: what waits for that, and `trailers` what comes behind it.
    """

    __slots__ = (
        "_body", "_connection", "_failure", "_headers", "_held", "_max_bytes", "_messages", "_metadata", "_waiting",
        "deadline", "has_answered", "id", "is_ended", "is_finished", "pending", "task", "trailers", "unasked",
        "untaken", "window",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, number: int, headers: Headers, *, window: int, max_bytes: int
    ) -> None:
        self._connection = connection
        self._headers = headers
        self._max_bytes = max_bytes
        self._metadata: dict[str, str | bytes] | None = None
        self._body = bytearray()
        self._messages: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._failure: HotdeltaError | None = None
        self._held = 0
        self.id = number
        self.window = window
        self.pending = b""
        self.trailers: bytes | None = None
        self.untaken = 0
        self.unasked = 0
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.is_ended = self.is_finished = self.has_answered = False

    @property
    def path(self) -> str:
        return self._headers[b":path"].decode("latin-1")

    @property
    def metadata(self) -> dict[str, str | bytes]:
        if self._metadata is None:
            self._metadata = metadata_of(self._headers)
        return self._metadata

    @property
    def encoding(self) -> str:
        """Of messages that are compressed."""
        return self._headers.get(b"grpc-encoding", b"identity").decode("latin-1")

    @property
    def timeout_seconds(self) -> float | None:
        """So long the client waits; None: for ever, or it does not say so in a way that is known."""
        told = self._headers.get(b"grpc-timeout")
        found = None if told is None else _TIMEOUT.fullmatch(told.decode("latin-1"))
        return None if found is None else int(found[1]) * _SECONDS[found[2]]

    @property
    def has_message(self) -> bool:
        """Whether the next one is here."""
        return bool(self._messages)

    def receive(self, payload: bytes) -> None:
        """A part of what the client sends. A message that cannot be taken fails when somebody asks for it."""
        if self._failure is not None or self.is_finished:
            return
        try:
            self._connection.buffered.take(len(payload))
            self._held += len(payload)
            self._body += payload
            self._split()
        except HotdeltaError as error:
            self._failure = error
            self._body.clear()
            self._give_back()
        self._wake()

    def end(self) -> None:
        """The client sends no more."""
        self.is_ended = True
        if self._body and self._failure is None:
            self._failure = RequestError("the message is not complete")
        self._wake()

    def _split(self) -> None:
        """Raises BodyTooLargeError, RequestError."""
        while len(self._body) >= _PREFIX_BYTES:
            (size,) = NUMBER.unpack_from(self._body, 1)
            if size > self._max_bytes:
                raise self._too_large(f"a message of {size} bytes")
            end = _PREFIX_BYTES + size
            if len(self._body) < end:
                return
            is_compressed, message = self._body[0], bytes(memoryview(self._body)[_PREFIX_BYTES:end])
            del self._body[:end]
            self._messages.append(self._decompressed(message) if is_compressed else message)

    def _decompressed(self, message: bytes) -> bytes:
        window = _FORMATS.get(self.encoding)
        if window is None:
            raise RequestError("a compressed message has no grpc-encoding")
        reader = zlib.decompressobj(window)
        try:
            content = reader.decompress(message, self._max_bytes + 1)
        except zlib.error as error:
            raise RequestError(f"a message is not compressed with {self.encoding}: {error}") from error
        if len(content) > self._max_bytes:
            raise self._too_large("what a message was compressed from")
        return content

    def _too_large(self, what: str) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"{what} is larger than {self._max_bytes} bytes",
            max_bytes=self._max_bytes,
            hint="send fewer rows, or raise --max-body-bytes",
        )

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        """The next message. Raises what made it impossible to take."""
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self.is_ended:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._messages.popleft()

    def forget_message(self) -> None:
        """The one that was given last is answered: of a stream that goes on nothing of it is held."""
        if not self._messages and not self._body:
            self._give_back()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _give_back(self) -> None:
        self._connection.buffered.give_back(self._held)
        self._held = 0

    def close(self) -> None:
        """Whatever it holds is given back, whoever works for it stops."""
        self._give_back()
        self._connection.buffered.give_back(self.untaken)
        self.untaken, self.pending = 0, b""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def cancel(self) -> None:
        """Nobody wants an answer any more."""
        self.is_finished = True
        self.close()
        if self.task is not None:
            self.task.cancel()

    def expire(self) -> None:
        """The client waits no longer."""
        if not self.is_finished:
            self.finish(StatusCode.DEADLINE_EXCEEDED, "the deadline of the call is over")
            if self.task is not None:
                self.task.cancel()

    def send(self, message: bytes) -> None:
        """One of several messages."""
        if not self.is_finished:
            self._connection.send(self, _framed(message), None)

    def answer(self, message: bytes, metadata: Metadata = ()) -> None:
        """The only message, and that all went well."""
        if not self.is_finished:
            self.is_finished = True
            self._connection.send(self, _framed(message), _DONE + block_of(metadata) if metadata else _DONE)

    def finish(self, code: StatusCode, reason: str = "", metadata: Iterable[tuple[str, str]] = ()) -> None:
        """How it ended."""
        if not self.is_finished:
            self.is_finished = True
            told = [("grpc-status", str(int(code)))]
            if reason:
                told.append(("grpc-message", quote(reason, safe=_PLAIN)))
            self._connection.send(self, b"", block_of([*told, *metadata]))


def _framed(message: bytes) -> bytes:
    return b"\x00" + NUMBER.pack(len(message)) + message
