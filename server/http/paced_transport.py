"""TLS with back pressure. By itself it encrypts at once all that is written, where nobody counts what is not taken.

Here a connection gives it one piece after the other, as the client takes them; the rest waits where it is counted.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import termios
from collections import deque
from typing import Any

PIECE_BYTES = 64 * 1024
_HIGH_WATER_BYTES = 64 * 1024
_LOOK_SECONDS = 0.05


class PacedProtocol(asyncio.Protocol):
    """Stands between TLS and the protocol of a connection. Belongs to the event loop."""

    def __init__(self, inner: asyncio.Protocol, *, closing_seconds: float) -> None:
        self._inner = inner
        self._closing_seconds = closing_seconds
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self._paced: PacedTransport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._paced = PacedTransport(transport, self._inner, closing_seconds=self._closing_seconds)
        self._inner.connection_made(self._paced)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._paced is not None:
            self._paced.forget()
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._paced is not None:
            self._paced.hold()

    def resume_writing(self) -> None:
        if self._paced is not None:
            self._paced.go_on()


class PacedTransport(asyncio.Transport):
    """What the protocol of a connection writes to. Knows of every byte that has not been taken, but for some pieces."""

    def __init__(self, tls: asyncio.Transport, protocol: asyncio.Protocol, *, closing_seconds: float) -> None:
        super().__init__()
        self._tls = tls
        self._protocol = protocol
        self._closing_seconds = closing_seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._is_held = False
        self._is_full = False
        self._is_closing = False
        self._closing: asyncio.TimerHandle | None = None
        # More than nothing.
        tls.set_write_buffer_limits(high=1, low=0)

    def write(self, data: Any) -> None:
        if self._is_closing or self._tls.is_closing():
            return
        if not self._waiting and not self._is_held and len(data) <= PIECE_BYTES:
            self._tls.write(data)
            return
        whole = memoryview(data)
        self._waiting.extend(
            whole[start : start + PIECE_BYTES] for start in range(0, len(whole), PIECE_BYTES)
        )
        self._waiting_bytes += len(whole)
        self.go_on_if_free()
        if not self._is_full and self._waiting_bytes > _HIGH_WATER_BYTES:
            self._is_full = True
            self._protocol.pause_writing()

    def hold(self) -> None:
        """TLS has as much as the client takes for now."""
        self._is_held = True

    def go_on(self) -> None:
        """The client has taken something."""
        self._is_held = False
        self.go_on_if_free()

    def go_on_if_free(self) -> None:
        while self._waiting and not self._is_held and not self._tls.is_closing():
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            self._tls.write(piece)
        if self._is_full and not self._waiting:
            self._is_full = False
            self._protocol.resume_writing()
        if self._is_closing and not self._waiting:
            self._close()

    def forget(self) -> None:
        """The connection is gone."""
        self._is_closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._closing is not None:
            self._closing.cancel()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._waiting:
                self._close()

    def _close(self) -> None:
        if self._closing is None:
            self._tls.close()
            self._look_at_end(self._loop.time() + self._closing_seconds)

    def _look_at_end(self, deadline: float) -> None:
        """TLS would wait for the client to say goodbye, too: an idle one does not even read."""
        if _is_all_taken(self._tls) or self._loop.time() >= deadline:
            self._tls.abort()
        else:
            self._closing = self._loop.call_later(_LOOK_SECONDS, self._look_at_end, deadline)

    def abort(self) -> None:
        self._is_closing = True
        self._tls.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._tls.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self._tls.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._tls.pause_reading()

    def resume_reading(self) -> None:
        self._tls.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls.get_extra_info(name, default)


def _is_all_taken(transport: asyncio.Transport) -> bool:
    """Whether the client has all that was written: while we keep any of it, so does the system."""
    count = array.array("i", [0])
    with contextlib.suppress(OSError, ValueError, AttributeError):
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, count)
    return count[0] == 0
