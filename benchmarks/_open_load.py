"""A process that asks POST /predict so many times a second, whether or not the answers keep up.

`python -m benchmarks._open_load PORT CONNECTIONS RATE SECONDS ROWS IDS` prints what it measured as a line of JSON. A
request is late from the moment at which it should have been sent: one that finds no free connection waits, and its wait
counts. Like `_http_load` it is sockets and little else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

import numpy as np
import uvloop

from benchmarks._http_load import questions

_PATIENCE_SECONDS = 10.0
_OK = b"HTTP/1.1 200 "


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Of all requests of some seconds, from their intended start. `late_p99_ms`: how late our own clock sent them."""

    answers: int
    failures: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    worst_ms: float
    late_p99_ms: float
    client_core_share: float


class _Crowd:
    """Who may ask next, and what came of it. Belongs to the event loop."""

    def __init__(self, requests: list[bytes], *, wanted: int) -> None:
        self._requests = requests
        self.wanted = wanted
        self._asked = 0
        self.free: list[_Client] = []
        self.due: deque[float] = deque()
        self.seconds: list[float] = []
        self.late: list[float] = []
        self.failures = 0
        self.is_answered = asyncio.Event()

    def send_due(self) -> None:
        while self.due and self.free:
            intended = self.due.popleft()
            request = self._requests[self._asked % len(self._requests)]
            self._asked += 1
            self.free.pop().ask(request, intended)


class _Client(asyncio.Protocol):
    """One connection, with one question at a time."""

    def __init__(self, crowd: _Crowd) -> None:
        self._crowd = crowd
        self._received = b""
        self._intended: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._crowd.free.append(self)

    def ask(self, request: bytes, intended: float) -> None:
        self._intended = intended
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank or self._intended is None or len(body) < _length(head):
            return
        if not head.startswith(_OK):
            self._crowd.failures += 1
        self._crowd.seconds.append(time.perf_counter() - self._intended)
        self._received, self._intended = b"", None
        self._crowd.free.append(self)
        self._crowd.send_due()
        if len(self._crowd.seconds) >= self._crowd.wanted:
            self._crowd.is_answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._crowd.free:
            self._crowd.free.remove(self)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise SystemExit(f"not an answer: {head!r}")


async def measure(port: int, connections: int, rate: int, seconds: int, rows: int, ids: int) -> OpenLoad:
    total = rate * seconds
    crowd = _Crowd(questions(rows, ids, seed=1), wanted=total)
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: _Client(crowd), "127.0.0.1", port)
    begun, own = time.perf_counter(), time.process_time()
    sent = 0
    while sent < total:
        now = time.perf_counter()
        while sent < total and (intended := begun + sent / rate) <= now:
            crowd.due.append(intended)
            crowd.late.append(now - intended)
            sent += 1
        crowd.send_due()
        await asyncio.sleep(max(0.0, begun + sent / rate - time.perf_counter()))
    own = time.process_time() - own
    if len(crowd.seconds) < total:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(crowd.is_answered.wait(), _PATIENCE_SECONDS)
    # What has no answer by now is a failure, too.
    unanswered = total - len(crowd.seconds)
    p50, p99, p999, worst = np.percentile(crowd.seconds, (50, 99, 99.9, 100)) * 1e3
    late = float(np.percentile(crowd.late, 99)) * 1e3
    failures = crowd.failures + unanswered
    return OpenLoad(len(crowd.seconds), failures, p50, p99, p999, worst, late, own / seconds)


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(measure(*map(int, sys.argv[1:]))))))
