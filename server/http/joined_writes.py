"""A connection on which all that is written in one turn of the event loop goes out in one system call."""

from __future__ import annotations

import asyncio


class JoinedWrites(asyncio.Protocol):
    """For protocols that answer many at once. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._write_out)
        self._out.append(data)

    def _write_out(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))
