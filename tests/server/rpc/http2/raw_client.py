"""A client of HTTP/2 that sends whatever it is told to, right or wrong, and shows what comes back."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Self

from hpack import Decoder, Encoder

from server.rpc.http2 import frames
from server.rpc.http2.frames import frame
from tests.waiting import LIMIT_SECONDS

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"


@dataclass(frozen=True)
class Got:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def is_last(self) -> bool:
        return bool(self.flags & frames.END_STREAM)

    @property
    def code(self) -> int:
        """Of a RST_STREAM or GOAWAY."""
        place = 4 if self.kind == frames.GOAWAY else 0
        return int.from_bytes(self.payload[place : place + 4])


@dataclass
class Answered:
    status: str
    metadata: dict[str, str]
    content: bytes


class RawClient:
    def __init__(
        self, address: str, *, settings: dict[int, int] | None = None, preface: bytes = frames.PREFACE
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=LIMIT_SECONDS)
        self._rest = b""
        self.encoder, self._decoder = Encoder(), Decoder()
        if preface:
            self.socket.sendall(preface + frames.settings_frame(settings or {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *written: bytes) -> None:
        self.socket.sendall(b"".join(written))

    def headers(
        self, stream: int, path: str = INFER, *, flags: int = frames.END_HEADERS, **more: str
    ) -> bytes:
        """A frame that begins a call."""
        return frame(frames.HEADERS, stream, self.block(path, **more), flags=flags)

    def block(self, path: str = INFER, **more: str) -> bytes:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            "content-type": "application/grpc",
            "te": "trailers",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        encoded: bytes = self.encoder.encode(list(fields.items()))
        return encoded

    def call(self, stream: int, message: bytes, path: str = INFER, **more: str) -> None:
        self.send(self.headers(stream, path, flags=frames.END_HEADERS, **more), *data(stream, message))

    def next(self) -> Got | None:
        """The next frame; None when the server has hung up."""
        while len(self._rest) < frames.HEAD_BYTES or len(self._rest) < self._size():
            try:
                received = self.socket.recv(2**16)
            except ConnectionResetError:
                return None
            if not received:
                return None
            self._rest += received
        size, kind, flags, stream = frames.read_head(self._rest, 0)
        payload, self._rest = self._rest[9 : 9 + size], self._rest[9 + size :]
        return Got(kind, flags, stream, payload)

    def _size(self) -> int:
        return frames.HEAD_BYTES + frames.read_head(self._rest, 0)[0]

    def until(self, *kinds: int) -> Got | None:
        """The next frame of one of these kinds; None when the server hangs up before."""
        while (got := self.next()) is not None:
            if got.kind in kinds:
                return got
        return None

    def answer(self, stream: int) -> Answered:
        """All that comes of a stream until it ends; settings and windows are not looked at."""
        told: dict[str, str] = {}
        content = b""
        while True:
            got = self.next()
            assert got is not None, "the server hung up"
            assert got.kind not in (frames.GOAWAY, frames.RST_STREAM), (got, got.payload)
            if got.stream != stream:
                continue
            if got.kind == frames.DATA:
                content += got.payload
            elif got.kind == frames.HEADERS:
                told |= {str(name): str(value) for name, value in self._decoder.decode(got.payload)}
                if got.is_last:
                    return Answered(told.get("grpc-status", ""), told, content)


def message_of(content: bytes) -> bytes:
    return b"\x00" + len(content).to_bytes(4) + content


def data(stream: int, content: bytes, *, piece: int = frames.FRAME_BYTES) -> list[bytes]:
    """A message, in as many frames as it needs."""
    framed = message_of(content)
    pieces = [framed[start : start + piece] for start in range(0, len(framed), piece)]
    last = len(pieces) - 1
    return [
        frame(frames.DATA, stream, each, flags=frames.END_STREAM if number == last else 0)
        for number, each in enumerate(pieces)
    ]
