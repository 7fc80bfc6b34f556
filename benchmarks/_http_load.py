"""A process that asks POST /predict over some connections, each again as soon as it is answered.

`python -m benchmarks._http_load PORT PID CONNECTIONS SECONDS ROWS IDS` prints what it measured as a line of JSON. It is
made of sockets and little else: it shares the machine with the server, and must not be what is measured.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
import psutil
import uvloop

WARM_UP_SECONDS = 0.5
QUESTIONS = 1000
_ANSWER = re.compile(rb"HTTP/1.1 200 OK\r\n(?:[^\r]+\r\n)*?content-length: (\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured after the warm-up: answers, how long they took, and who needed the processor for them."""

    per_second: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    server_cpu_us: float
    """For each answer, in all threads of the server."""
    client_core_share: float
    """Of one core, for asking."""


class Client(asyncio.Protocol):
    """One connection. What each of its answers took is appended to `seconds`, which all of them share."""

    def __init__(self, questions: list[bytes], seconds: list[float]) -> None:
        self._questions = questions
        self._seconds = seconds
        self._asked = 0
        self._asked_at = 0.0
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not _is_complete(self._received):
            return
        self._seconds.append(time.perf_counter() - self._asked_at)
        self._received = b""
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        raise SystemExit("the server closed a connection")

    def _ask(self) -> None:
        question = self._questions[self._asked % len(self._questions)]
        self._asked += 1
        self._asked_at = time.perf_counter()
        self._transport.write(question)


def _is_complete(received: bytes) -> bool:
    head, blank, body = received.partition(b"\r\n\r\n")
    if not blank:
        return False
    found = _ANSWER.match(head + b"\r\n")
    if found is None:
        raise SystemExit(f"not an answer: {received!r}")
    return len(body) == int(found[1])


def questions(rows: int, ids: int, seed: int) -> list[bytes]:
    """Requests for one row each, as they go over the wire."""
    random = np.random.default_rng(seed)
    bodies = [
        json.dumps({"instances": [row]}).encode()
        for row in random.integers(0, rows, (QUESTIONS, ids)).tolist()
    ]
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return [head % len(body) + body for body in bodies]


async def measure(port: int, pid: int, connections: int, seconds: int, rows: int, ids: int) -> Load:
    answers: list[float] = []
    for number in range(connections):
        connect = functools.partial(Client, questions(rows, ids, seed=number), answers)
        await asyncio.get_running_loop().create_connection(connect, "127.0.0.1", port)
    await asyncio.sleep(WARM_UP_SECONDS)
    answers.clear()
    start, own, server = time.perf_counter(), time.process_time(), _cpu_seconds(pid)
    await asyncio.sleep(seconds)
    wall, own, server = time.perf_counter() - start, time.process_time() - own, _cpu_seconds(pid) - server
    p50, p99, worst = np.percentile(answers, (50, 99, 100)) * 1e3
    return Load(len(answers) / wall, p50, p99, worst, server / len(answers) * 1e6, own / wall)


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(measure(*map(int, sys.argv[1:]))))))
