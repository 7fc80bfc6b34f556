"""A front-end as a process: `python -m server.front LISTENER LINE HANDOVER SHARES`, descriptors that it inherits.

It lives as long as the model's process does, hears no signals but through it, and learns its settings from it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from hotdelta.errors import HotdeltaError
from hotdelta.logs import event
from server.front.application import FrontApplication
from server.front.forwarding import Forwarding
from server.front.line import ModelLine
from server.front.messages import HEAD, read_document
from server.front.settings import read_settings, share_of
from server.front.shares import ConnectionShares
from server.http.accepting import Accepting, Turns
from server.http.connection_limits import ConnectionLimits
from server.http.handshakes import MAX_HANDSHAKES, Handshakes
from server.http.listening import allow_files, configure
from server.http.uvicorn_internals import Listening, OpenServer
from server.log_writer import log_to_stderr
from server.settings import Settings
from server.tls import TlsFiles
from server.tokens import PredictTokens
from server.watched_files import WatchedFiles

EXIT_FAILED = 1
_REPORT_SECONDS = 1.0

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    *sockets, shared = map(int, arguments)
    listener, line, handover = (socket.socket(fileno=descriptor) for descriptor in sockets)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # They are for the model's process, also when they are sent to all of us.
        signal.signal(number, signal.SIG_IGN)
    told = _read_first(line)
    if told is None:
        return EXIT_FAILED
    settings = read_settings(told["settings"])
    log_to_stderr(settings.log_format)
    share = _Share(ConnectionShares(shared, settings.front_ends), told["number"])
    try:
        ways = _Ways(listener, line, handover, share)
        _serve(settings, [token.encode() for token in told["more_tokens"]], ways)
    except HotdeltaError as error:
        event(logger, logging.ERROR, "a front-end cannot start", reason=error)
        return EXIT_FAILED
    return 0


def _read_first(line: socket.socket) -> Mapping[str, Any] | None:
    """The settings; None when the model's process is gone already."""
    head = _receive(line, HEAD.size)
    if head is None:
        return None
    rest = _receive(line, HEAD.unpack(head)[0] - HEAD.size)
    if rest is None:
        return None
    told: Mapping[str, Any] = read_document(head + rest, 0)
    return told


def _receive(line: socket.socket, size: int) -> bytes | None:
    received = b""
    while len(received) < size:
        piece = line.recv(size - len(received))
        if not piece:
            return None
        received += piece
    return received


@dataclass(frozen=True, slots=True)
class _Share:
    """Of the connections of all front-ends: which number is ours."""

    shares: ConnectionShares
    number: int

    def tell(self, connections: int) -> None:
        self.shares.tell(self.number, connections)

    def is_of_others(self) -> bool:
        return self.shares.has_more_than_others(self.number)

    def note_taken(self) -> None:
        self.shares.add(self.number)


@dataclass(frozen=True, slots=True)
class _Ways:
    """What was inherited: where clients come from, and what leads to the model's process."""

    listener: socket.socket
    line: socket.socket
    handover: socket.socket
    share: _Share


def _serve(settings: Settings, more_tokens: Sequence[bytes], ways: _Ways) -> None:
    """Raises ConfigurationError when files of the settings cannot be used."""
    limits = share_of(settings)
    tls = TlsFiles.of(settings)
    file = settings.predict_token_file
    tokens = None if file is None else PredictTokens(file, more=more_tokens)
    ways.handover.setblocking(False)
    ways.line.setblocking(False)
    allow_files(limits.max_connections if tls is None else limits.max_connections + MAX_HANDSHAKES)
    app = FrontApplication(
        lambda: server.line,
        Forwarding(ways.handover),
        limits,
        max_body_bytes=settings.max_body_bytes,
        tokens=tokens,
    )
    config = configure(app, stop_seconds=settings.stop_seconds, limits=limits, lifespan="off")
    server = _FrontServer(config, app, limits, tls, ways)
    server.run(sockets=[ways.listener])


class _FrontServer(OpenServer):
    """Takes connections while the line to the model's process is open, and until that says it is enough."""

    line: ModelLine

    def __init__(
        self,
        config: uvicorn.Config,
        app: FrontApplication,
        limits: ConnectionLimits,
        tls: TlsFiles | None,
        ways: _Ways,
    ) -> None:
        super().__init__(config)
        self._app = app
        self._limits = limits
        self._contexts = None if tls is None else WatchedFiles(tls.paths, tls.context)
        self._ways = ways
        self._reporting: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the model's process hears it, too, and tells us what to do."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.line = ModelLine(self._app.report, self._stop, _leave)
        await loop.create_unix_connection(lambda: self.line, sock=self._ways.line)
        await self.line.is_open.wait()
        self._app.open()
        self._ways.share.tell(0)
        await super().startup(sockets)
        self.line.say_ready()
        self._reporting = loop.create_task(self._report())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._reporting is not None:
            self._reporting.cancel()
        self.line.report(is_asked=False)
        await self.line.close()

    async def listen(self, listener: socket.socket) -> Listening:
        # One connection in a turn: whoever has fewer, or is less busy, takes the next one.
        if self._contexts is not None:
            seconds = self._limits.client_timeout_seconds
            return Handshakes(
                listener,
                self.make_protocol,
                self._contexts.current,
                seconds=seconds,
                at_once=1,
                turns=self._ways.share,
            )
        return _Listening(listener, self.make_protocol, self._ways.share)

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second: connections that have ended are told, too."""
        self._ways.share.tell(len(self.server_state.connections))
        return await super().on_tick(counter)

    def _stop(self) -> None:
        self.should_exit = True

    async def _report(self) -> None:
        """Now and then: what was not told is lost with a process that is killed."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            self.line.report(is_asked=False)


class _Listening:
    """Takes connections, one in each turn of the event loop."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        turns: Turns,
    ) -> None:
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._accepting = Accepting(listener, self._begin, at_once=1, turns=turns)

    def close(self) -> None:
        self._accepting.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make_protocol, connection))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        """A client that has hung up already is no fault of ours."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


def _leave() -> None:
    """The model's process is gone: nobody can be answered any more."""
    logging.shutdown()
    os._exit(EXIT_FAILED)
