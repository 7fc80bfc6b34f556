"""A server in front of a fake model, on a real socket, and what one sends it byte by byte."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from fastapi import FastAPI

from server.http.listening import Listener, bind, configure
from server.tls import TlsFiles
from tests.server.application import application, configuration_of
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS, wait_until

BODY = b'{"instances": [[1, 2]]}'
LENGTH = f"Content-Length: {len(BODY)}"


@contextmanager
def serving(model: FakeModel, *, stop_seconds: float = 5, **options: Any) -> Iterator[tuple[str, int]]:
    """The address of a server with these settings, which is told to stop when the block ends."""
    app, settings = application(model, **options), configuration_of(**options).server
    with serving_app(app, stop_seconds=stop_seconds, tls=TlsFiles.of(settings)) as address:
        yield address


@contextmanager
def serving_rpc(model: FakeModel, **options: Any) -> Iterator[str]:
    """The address for gRPC of a server with these settings, which is told to stop when the block ends."""
    app = application(model, grpc_port=0, **options)
    with serving_app(app, tls=TlsFiles.of(configuration_of(**options).server)):
        wait_until(lambda: bool(app.state.rpc.address), "the port for gRPC is open")
        yield app.state.rpc.address


@contextmanager
def serving_app(
    app: FastAPI, *, stop_seconds: float = 5, tls: TlsFiles | None = None
) -> Iterator[tuple[str, int]]:
    listener = bind("127.0.0.1", 0)
    listener.listen()
    limits = app.state.limits
    server = Listener(
        configure(app, stop_seconds=stop_seconds, limits=limits),
        limits,
        tls,
        str,
        leave_others=app.state.leave_others,
        front_ends=app.state.front_ends,
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    if app.state.front_ends is not None:
        front_ends = app.state.front_ends
        wait_until(lambda: front_ends.running == front_ends.count, "the front-ends take connections")
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()


def request(*headers: str, body: bytes = BODY, line: str = "POST /predict HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: x", *headers, "", ""]).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, Any]:
    """Status and document of one answer, and nothing of the next one, which may be there, too."""
    with connection.makefile("rb", buffering=0) as stream:
        status = int(stream.readline().split()[1])
        headers = dict(
            line.decode().lower().split(": ") for line in iter(lambda: stream.readline().strip(), b"")
        )
    size, content = int(headers["content-length"]), b""
    while len(content) < size and (piece := connection.recv(size - len(content))):
        content += piece
    return status, orjson.loads(content)


@contextmanager
def answered_before(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection that the server has answered on: it waits for nothing before something is sent again.

    For tests of its patience: on a new one that is over when we are slow with the first byte; then we try again.
    """
    connection = _answered(address)
    while connection is None:
        connection = _answered(address)
    with connection:
        yield connection


class Pace:
    """How long we took, at most, between two calls."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._last = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        self.longest_seconds, self._last = max(self.longest_seconds, now - self._last), now


def told_in_time(story: Callable[[Pace], object], *, seconds: float) -> None:
    """For tests of what a server does to clients that are in time: a story in which we were late tells nothing of it.

    `story` calls what it is given between any two things that it does. When it fails, and took `seconds` or more for
    one of them, it is told again; when that goes on for long it has failed.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        go_on = Pace()
        try:
            story(go_on)
        except (AssertionError, LookupError, OSError, ValueError):
            go_on()
            if go_on.longest_seconds < seconds or time.monotonic() > deadline:
                raise
        else:
            return


def _answered(address: tuple[str, int]) -> socket.socket | None:
    connection = socket.create_connection(address, timeout=30)
    with contextlib.suppress(ConnectionError):
        connection.sendall(request(LENGTH))
        if connection.recv(1, socket.MSG_PEEK) and read_answer(connection)[0] == 200:
            return connection
    connection.close()
    return None


def ask(address: tuple[str, int], sent: bytes) -> tuple[int, Any]:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(sent)
        return read_answer(connection)
