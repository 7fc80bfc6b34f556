"""One connection: frames become streams, streams are answered, and neither side has to hold more than it wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from server.http.connection_limits import BufferedBytes, Refusals
from server.http.joined_writes import JoinedWrites
from server.rpc.http2 import frames
from server.rpc.http2.frames import BrokenConnectionError, ErrorCode, frame
from server.rpc.http2.header_blocks import ANSWER, MAX_BLOCK_BYTES, HeaderReader, Headers, MalformedError
from server.rpc.http2.stream import ENCODINGS, Stream
from server.rpc.status_codes import StatusCode

# Enough for the round trips of a fast network. What is really held is bounded by the bytes of all calls together.
_STREAM_WINDOW = 2**20
_WINDOW = 2**22
_MAX_STREAMS = 1024
_MAX_CONTINUATIONS = 32
# Calls that a client takes back: some at once, and so many a second. Each may have cost a call of the model.
_RESETS = 1000
_MAX_EMPTY_FRAMES = 1000

_SETTINGS = {
    frames.MAX_CONCURRENT_STREAMS: _MAX_STREAMS,
    frames.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
    frames.MAX_HEADER_LIST_SIZE: MAX_BLOCK_BYTES,
}
_GRPC = b"application/grpc"
_NO_GRPC = b"\x08\x03415"


@dataclass(slots=True, eq=False)
class Port:
    """What all connections of one port share. Belongs to the event loop.

    `respond` answers a stream; it raises nothing but that it was cancelled.
    """

    respond: Callable[[Stream], Coroutine[Any, Any, None]]
    max_message_bytes: int
    max_calls: int
    max_connections: int
    client_timeout_seconds: float
    buffered: BufferedBytes
    refusals: Refusals
    calls: int = 0
    is_leaving: bool = False
    connections: dict[Connection, None] = field(default_factory=dict)
    has_lost: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Block:
    """Headers that have not come to their end."""

    stream: int
    is_last: bool
    content: bytes
    continuations: int = 0


class Connection(JoinedWrites):
    """Belongs to the event loop."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        self._port = port
        self.buffered = port.buffered
        self._rest = b""
        self._has_begun = False
        self._headers = HeaderReader()
        self._block: _Block | None = None
        self._streams: dict[int, Stream] = {}
        self._newest = 0
        self._received = 0
        self._window = self._first_window = frames.FIRST_WINDOW
        self._frame_bytes = frames.FRAME_BYTES
        self._blocked: dict[int, Stream] = {}
        self._is_paused = self._is_leaving = False
        self._sent_bytes = 0
        self._taking: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._resets_left, self._resets_at = float(_RESETS), 0.0
        self._empty_frames = 0
        # Priorities, that the client leaves, and what extensions may mean, change nothing here.
        self._takes: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._take_data,
            frames.HEADERS: self._take_headers,
            frames.RST_STREAM: self._take_reset,
            frames.SETTINGS: self._take_settings,
            frames.PUSH_PROMISE: self._take_push,
            frames.PING: self._take_ping,
            frames.WINDOW_UPDATE: self._take_window,
            frames.CONTINUATION: self._take_continuation,
        }

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        port = self._port
        if len(port.connections) >= port.max_connections and not self._make_room():
            port.refusals.add()
            self._give_up(ErrorCode.ENHANCE_YOUR_CALM, "as many connections are open as may be")
            return
        port.connections[self] = None
        more = frames.NUMBER.pack(_WINDOW - frames.FIRST_WINDOW)
        self._write(frames.settings_frame(_SETTINGS) + frame(frames.WINDOW_UPDATE, 0, more))
        self._patience = self._loop.call_later(port.client_timeout_seconds, self.abort)
        if port.is_leaving:
            self.leave()

    def connection_lost(self, _error: Exception | None) -> None:
        self._port.connections.pop(self, None)
        self._port.has_lost.set()
        for timer in (self._taking, self._patience):
            if timer is not None:
                timer.cancel()
        self._taking = self._patience = None
        self._blocked.clear()
        for stream in self._streams.values():
            stream.cancel()
        self._streams.clear()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._is_gone():
            return
        try:
            self._rest = self._take(self._rest + data if self._rest else data)
        except BrokenConnectionError as error:
            self._give_up(error.code, str(error))

    def pause_writing(self) -> None:
        """The client takes nothing: until it does, nothing else that it asks is looked at."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._expect_taking()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._push_blocked()

    # What the port calls.

    @property
    def is_idle(self) -> bool:
        return not self._streams

    def leave(self) -> None:
        """No new streams; it ends with the last one."""
        if not self._is_leaving and not self._is_gone():
            self._is_leaving = True
            self._say_goodbye(ErrorCode.NO_ERROR)
            self._end_if_left()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Frames that come.

    def _take(self, data: bytes) -> bytes:
        """Reads the frames that are complete; returns the rest. Raises BrokenConnectionError."""
        place, end = 0, len(data)
        if not self._has_begun:
            preface = frames.PREFACE
            if not data.startswith(preface[:end]):
                raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")
            if end < len(preface):
                return data
            self._has_begun, place = True, len(preface)
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None
        while end - place >= frames.HEAD_BYTES:
            size, kind, flags, stream = frames.read_head(data, place)
            if size > frames.FRAME_BYTES:
                raise BrokenConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            after = place + frames.HEAD_BYTES + size
            if after > end:
                break
            self._take_frame(kind, flags, stream, data[place + frames.HEAD_BYTES : after])
            place = after
            if self._is_gone():
                return b""
        return data[place:] if place else data

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream != self._block.stream):
            raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "headers that have no end")
        take = self._takes.get(kind)
        if take is not None:
            take(flags, stream, payload)

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._count_received(size, is_last=bool(flags & frames.END_STREAM))
        content = frames.unpadded(payload, flags)
        stream = self._streams.get(number)
        if stream is None:
            self._require_known(number)
            return
        if stream.is_ended:
            raise BrokenConnectionError(ErrorCode.STREAM_CLOSED, "data behind the end of a stream")
        stream.unasked += size
        if content:
            stream.receive(content)
        if flags & frames.END_STREAM:
            stream.end()
        elif stream.unasked >= _STREAM_WINDOW // 2:
            self._write(frame(frames.WINDOW_UPDATE, number, frames.NUMBER.pack(stream.unasked)))
            stream.unasked = 0

    def _count_received(self, size: int, *, is_last: bool) -> None:
        """Windows are opened as data come, so nobody can send more than that. What is held is counted elsewhere."""
        self._received += size
        if self._received >= _WINDOW // 2:
            self._write(frame(frames.WINDOW_UPDATE, 0, frames.NUMBER.pack(self._received)))
            self._received = 0
        if size or is_last:
            self._empty_frames = 0
        else:
            self._empty_frames += 1
            if self._empty_frames > _MAX_EMPTY_FRAMES:
                raise BrokenConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "frames with nothing in them")

    def _take_headers(self, flags: int, number: int, payload: bytes) -> None:
        content = frames.unpadded(payload, flags)
        if flags & frames.WITH_PRIORITY:
            if len(content) < 5:
                raise BrokenConnectionError(ErrorCode.FRAME_SIZE_ERROR, "headers without their priority")
            content = content[5:]
        self._block = _Block(number, bool(flags & frames.END_STREAM), content)
        if flags & frames.END_HEADERS:
            self._take_block()

    def _take_continuation(self, flags: int, _number: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "headers go on that did not begin")
        block.continuations += 1
        block.content += payload
        if len(block.content) > MAX_BLOCK_BYTES or block.continuations > _MAX_CONTINUATIONS:
            raise BrokenConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "headers that are too long")
        if flags & frames.END_HEADERS:
            self._take_block()

    def _take_block(self) -> None:
        block, self._block = self._block, None
        assert block is not None  # noqa: S101
        number, headers = block.stream, None
        try:
            # Also where nobody needs it: what later ones mean depends on it.
            headers = self._headers.read(block.content)
        except MalformedError:
            self._reset(number, ErrorCode.PROTOCOL_ERROR)
        known = self._streams.get(number)
        if known is not None:
            if known.is_ended or not block.is_last:
                raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "headers in the middle of a stream")
            known.end()
            return
        if not number % 2 or number <= self._newest:
            raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, f"a stream of the number {number}")
        if self._is_leaving:
            self._reset(number, ErrorCode.REFUSED_STREAM)
            return
        self._newest = number
        if len(self._streams) >= _MAX_STREAMS:
            self._reset(number, ErrorCode.REFUSED_STREAM)
        elif headers is not None:
            self._begin(number, headers, is_last=block.is_last)

    def _begin(self, number: int, headers: Headers, *, is_last: bool) -> None:
        port = self._port
        if b":path" not in headers or b":method" not in headers:
            self._reset(number, ErrorCode.PROTOCOL_ERROR)
            return
        if headers[b":method"] != b"POST" or not headers.get(b"content-type", b"").startswith(_GRPC):
            flags = frames.END_HEADERS | frames.END_STREAM
            self._write(frame(frames.HEADERS, number, _NO_GRPC, flags=flags))
            return
        stream = Stream(self, number, headers, window=self._first_window, max_bytes=port.max_message_bytes)
        self._streams[number] = stream
        stream.is_ended = is_last
        if stream.encoding not in ENCODINGS:
            told = (("grpc-accept-encoding", ",".join(ENCODINGS)),)
            stream.finish(StatusCode.UNIMPLEMENTED, f"messages by {stream.encoding} are not taken", told)
            return
        if port.calls >= port.max_calls:
            port.refusals.add()
            stream.finish(StatusCode.RESOURCE_EXHAUSTED, f"{port.calls} calls are open. try again later")
            return
        port.calls += 1
        stream.task = self._loop.create_task(port.respond(stream))
        stream.task.add_done_callback(self._note_end)
        if (seconds := stream.timeout_seconds) is not None:
            stream.deadline = self._loop.call_later(seconds, stream.expire)

    def _note_end(self, _task: asyncio.Task[None]) -> None:
        self._port.calls -= 1

    def _take_reset(self, _flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a reset of another size")
        stream = self._streams.get(number)
        if stream is None:
            self._require_known(number)
            return
        self._count_reset()
        self._forget(stream)
        stream.cancel()

    def _count_reset(self) -> None:
        now = self._loop.time()
        self._resets_left = min(_RESETS, self._resets_left + (now - self._resets_at) * _RESETS) - 1
        self._resets_at = now
        if self._resets_left < 0:
            raise BrokenConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many calls are taken back")

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if flags & frames.ACK:
            return
        for setting, value in frames.read_settings(payload):
            if setting == frames.INITIAL_WINDOW_SIZE:
                self._change_first_window(value)
            elif setting == frames.MAX_FRAME_SIZE:
                if not frames.FRAME_BYTES <= value <= frames.LARGEST_FRAME:
                    raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._frame_bytes = value
        self._write(frame(frames.SETTINGS, 0, flags=frames.ACK))
        self._push_blocked()

    def _change_first_window(self, value: int) -> None:
        if value > frames.LARGEST_WINDOW:
            raise BrokenConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
        change, self._first_window = value - self._first_window, value
        for stream in self._streams.values():
            stream.window += change

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "a ping of another size, or of a stream")
        if not flags & frames.ACK:
            self._write(frame(frames.PING, 0, payload, flags=frames.ACK))

    def _take_window(self, _flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a window of another size")
        more = frames.NUMBER.unpack(payload)[0] & frames.LARGEST_WINDOW
        if not number:
            self._window += more
            if not more or self._window > frames.LARGEST_WINDOW:
                raise BrokenConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a window that cannot be")
            self._push_blocked()
            return
        stream = self._streams.get(number)
        if stream is None:
            self._require_known(number)
            return
        stream.window += more
        if not more or stream.window > frames.LARGEST_WINDOW:
            self._reset(number, ErrorCode.FLOW_CONTROL_ERROR)
            self._forget(stream)
            stream.cancel()
        elif number in self._blocked:
            self._push(stream)

    def _take_push(self, _flags: int, _number: int, _payload: bytes) -> None:
        raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "a client pushes nothing")

    def _require_known(self, number: int) -> None:
        """Of one that has ended frames may still be on their way."""
        if not number or (number > self._newest and not self._is_leaving):
            raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, f"a stream of the number {number}")

    # What goes.

    def send(self, stream: Stream, content: bytes, trailers: bytes | None) -> None:
        """As soon as the client takes it. `trailers`: what ends the stream."""
        if stream.id not in self._streams:
            return
        if content and not stream.has_answered:
            stream.has_answered = True
            self._write(frame(frames.HEADERS, stream.id, ANSWER, flags=frames.END_HEADERS))
        stream.pending = stream.pending + content if stream.pending else content
        stream.trailers = trailers
        self._push(stream)

    def _push(self, stream: Stream) -> None:
        pending, place = stream.pending, 0
        while place < len(pending):
            room = min(self._window, stream.window, self._frame_bytes)
            if room <= 0 or self._is_paused:
                break
            piece = pending[place : place + room]
            self._write(frame(frames.DATA, stream.id, piece))
            place += len(piece)
            self._window -= len(piece)
            stream.window -= len(piece)
        if place:
            self._sent_bytes += place
            stream.pending = pending = pending[place:]
        self._count_untaken(stream)
        if pending:
            self._blocked[stream.id] = stream
            self._expect_taking()
            return
        self._blocked.pop(stream.id, None)
        if stream.trailers is not None:
            self._end(stream, stream.trailers)

    def _end(self, stream: Stream, trailers: bytes) -> None:
        block = trailers if stream.has_answered else ANSWER + trailers
        flags = frames.END_HEADERS | frames.END_STREAM
        self._write(frame(frames.HEADERS, stream.id, block, flags=flags))
        if not stream.is_ended:
            # Whatever it still wants to send.
            self._reset(stream.id, ErrorCode.NO_ERROR)
        self._forget(stream)
        stream.close()

    def _count_untaken(self, stream: Stream) -> None:
        self.buffered.add(len(stream.pending) - stream.untaken)
        stream.untaken = len(stream.pending)

    def _push_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            if self._window <= 0 or self._is_paused:
                return
            self._push(stream)

    def _reset(self, number: int, code: ErrorCode) -> None:
        self._write(frame(frames.RST_STREAM, number, frames.NUMBER.pack(code)))

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._end_if_left()

    # Who is late, or leaves.

    def _make_room(self) -> bool:
        """Somebody who asks nothing makes way for the next: his next call opens a new connection."""
        idle = next((other for other in self._port.connections if other.is_idle), None)
        if idle is not None:
            idle.leave()
            self._port.connections.pop(idle, None)
        return idle is not None

    def _expect_taking(self) -> None:
        if self._taking is None and not self._is_gone():
            sent = self._sent_bytes, self._waiting_bytes()
            self._taking = self._loop.call_later(self._port.client_timeout_seconds, self._check_taking, sent)

    def _check_taking(self, before: tuple[int, int]) -> None:
        self._taking = None
        if not self._blocked and not self._is_paused:
            return
        if (self._sent_bytes, self._waiting_bytes()) == before:
            self.abort()
        else:
            self._expect_taking()

    def _waiting_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _end_if_left(self) -> None:
        if self._is_leaving and not self._streams and self._transport is not None:
            self._write_out()
            self._transport.close()

    def _is_gone(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _say_goodbye(self, code: ErrorCode, problem: str = "") -> None:
        told = frames.NUMBER.pack(self._newest) + frames.NUMBER.pack(code) + problem.encode()
        self._write(frame(frames.GOAWAY, 0, told))

    def _give_up(self, code: ErrorCode, problem: str) -> None:
        self._say_goodbye(code, problem)
        self._write_out()
        for stream in self._streams.values():
            stream.cancel()
        self._streams.clear()
        if self._transport is not None:
            self._transport.close()
