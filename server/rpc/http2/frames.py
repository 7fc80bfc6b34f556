"""Frames of HTTP/2 as bytes (RFC 9113): their kinds, flags, settings and errors, by their names there."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
# What every peer takes, and the most that is taken here: longer frames would only make others wait longer.
FRAME_BYTES = 16_384
LARGEST_FRAME = 2**24 - 1
LARGEST_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 0x3, 0x4, 0x5, 0x6


class ErrorCode(IntEnum):
    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class BrokenConnectionError(Exception):
    """The peer does not keep to the protocol: nothing that follows can be understood."""

    def __init__(self, code: ErrorCode, problem: str) -> None:
        super().__init__(problem)
        self.code = code


_HEAD = struct.Struct(">BHBBL")
_SETTING = struct.Struct(">HL")
NUMBER = struct.Struct(">L")


def read_head(data: bytes, place: int) -> tuple[int, int, int, int]:
    """Size, kind, flags and stream of the frame that begins there."""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, place)
    return high << 16 | low, kind, flags, stream & LARGEST_WINDOW


def frame(kind: int, stream: int, payload: bytes = b"", *, flags: int = 0) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def settings_frame(settings: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, b"".join(_SETTING.pack(*each) for each in settings.items()))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Raises BrokenConnectionError."""
    if len(payload) % _SETTING.size:
        raise BrokenConnectionError(ErrorCode.FRAME_SIZE_ERROR, "settings of another size")
    yield from _SETTING.iter_unpack(payload)


def unpadded(payload: bytes, flags: int) -> bytes:
    """What is in a DATA or HEADERS frame. Raises BrokenConnectionError."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BrokenConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
