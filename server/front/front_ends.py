"""The front-end processes of a server: started, heard, started again, told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import orjson

from hotdelta.logs import event
from server.figures import ClientFigures, RequestFigures
from server.front.model_side import ModelSide, Report
from server.front.settings import told_settings
from server.front.shares import ConnectionShares
from server.front.told import Telling
from server.http.uvicorn_internals import Listening, OpenHttpProtocol
from server.models.models import Models
from server.settings import Settings

logger = logging.getLogger(__name__)

MODULE = "server.front"
_ROOT = str(Path(__file__).parents[2])
_BACKLOG = 2048
_REPORT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
# One that ran for so long is no sign that the next one will not.
_LONG_SECONDS = 60.0
# After its time to stop: answers that are cut short have to be written, and Python has to end.
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_INTRODUCTION_BYTES = 4096

MakeProtocol = Callable[[], OpenHttpProtocol]


@dataclass(slots=True, eq=False)
class _FrontEnd:
    """One process, and the two ways between it and us."""

    number: int
    process: subprocess.Popen[bytes]
    side: ModelSide
    handover: socket.socket
    buffered_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Public:
    """What front-ends share: where clients come, and how many each of them has. How what they pass on is answered."""

    listener: socket.socket
    make_protocol: MakeProtocol
    counts: IO[bytes]
    shares: ConnectionShares


class FrontEnds:
    """So many processes that all accept from one socket. Belongs to the event loop.

    One socket and not one each (SO_REUSEPORT): one that dies leaves no queue behind that nobody looks at. `clients`:
    what they have told of theirs; `restarts`: of those that had ended.
    """

    def __init__(
        self,
        settings: Settings,
        models: Models,
        requests: Mapping[str, RequestFigures],
        *,
        more_tokens: Sequence[bytes] = (),
    ) -> None:
        """`requests`: where what they answered is counted, by protocol. `more_tokens`: of who may predict, too."""
        self._settings = settings
        self.count = settings.front_ends
        self._told_settings = {
            "settings": told_settings(settings),
            "more_tokens": [token.decode() for token in more_tokens],
        }
        self._telling = Telling(models)
        self._requests = requests
        self._running: dict[int, _FrontEnd] = {}
        self._public: _Public | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = asyncio.Event()
        self.clients = ClientFigures()
        self.restarts = 0

    @property
    def running(self) -> int:
        """Those that take connections."""
        return sum(each.side.is_ready.is_set() for each in self._running.values())

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(each.process.pid for each in self._running.values())

    async def listen(
        self, listener: socket.socket, make_protocol: MakeProtocol, *, is_stopping: Callable[[], bool]
    ) -> Listening:
        """When all of them take connections from `listener`, or it is time to stop.

        `make_protocol`: of a connection over which one of them passes on what it does not answer by itself.
        """
        listener.listen(_BACKLOG)
        counts = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as there are front-ends
        public = _Public(listener, make_protocol, counts, ConnectionShares.make(counts, self.count))
        self._public = public
        loop = asyncio.get_running_loop()
        self._keepers = [loop.create_task(self._keep(number, public)) for number in range(self.count)]
        while self.running < self.count and not is_stopping():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), _LOOK_SECONDS)
        return _Nothing()

    async def stop(self) -> None:
        """When they have answered what they were asked; who has not in time is ended."""
        self._is_stopping.set()
        if self._public is None:
            return
        # Who would only be queued, because we have it open for those that are started again, is refused at once.
        with contextlib.suppress(OSError):
            self._public.listener.shutdown(socket.SHUT_RDWR)
        for front_end in self._running.values():
            front_end.side.stop()
        await asyncio.wait(self._keepers)
        self._public.counts.close()

    async def hear_all(self) -> None:
        """When all that they counted is known here."""
        asked = [each.side.report(_REPORT_SECONDS) for each in self._running.values()]
        await asyncio.gather(*asked)

    async def _keep(self, number: int, public: _Public) -> None:
        """One of them, and the next one when it has ended."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._is_stopping.is_set():
            started = time.monotonic()
            try:
                front_end = await self._start(number, public)
            except OSError as error:
                event(logger, logging.ERROR, "a front-end cannot be started", reason=error, seconds=pause)
            else:
                await self._see_end(front_end, public)
                if self._is_stopping.is_set():
                    return
                if time.monotonic() - started > _LONG_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                self._warn(front_end, pause)
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _warn(self, front_end: _FrontEnd, seconds: float) -> None:
        event(
            logger,
            logging.WARNING,
            "a front-end has ended and is started again",
            front_end=front_end.number,
            pid=front_end.process.pid,
            exit_code=front_end.process.returncode,
            seconds=seconds,
        )

    async def _start(self, number: int, public: _Public) -> _FrontEnd:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        # Where one message is one connection.
        handover, their_handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs, their_handover:
            inherited = (public.listener, theirs, their_handover, public.counts)
            try:
                process = await asyncio.to_thread(_spawn, [each.fileno() for each in inherited])
            except OSError:
                ours.close()
                handover.close()
                raise
        told = {**self._told_settings, "number": number}
        side = ModelSide(self._telling, told, lambda report: self._hear(front_end, report))
        front_end = _FrontEnd(number, process, side, handover)
        self._running[number] = front_end
        loop = asyncio.get_running_loop()
        ours.setblocking(False)
        await loop.create_unix_connection(lambda: side, sock=ours)
        handover.setblocking(False)
        loop.add_reader(handover, self._take_over, handover, public.make_protocol)
        if self._is_stopping.is_set():
            side.stop()
        return front_end

    async def _see_end(self, front_end: _FrontEnd, public: _Public) -> None:
        """Its connection ends before it does."""
        gone = asyncio.ensure_future(front_end.side.is_gone.wait())
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        await asyncio.wait([gone, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            await asyncio.wait([gone], timeout=self._settings.stop_seconds + _END_SECONDS)
        for waiting in (gone, stopping):
            waiting.cancel()
        asyncio.get_running_loop().remove_reader(front_end.handover)
        front_end.handover.close()
        del self._running[front_end.number]
        public.shares.leave(front_end.number)
        self._count_buffered()
        await asyncio.to_thread(_reap, front_end.process)

    def _take_over(self, handover: socket.socket, make_protocol: MakeProtocol) -> None:
        """A connection with something that a front-end does not answer by itself."""
        while True:
            try:
                told, descriptors, _, _ = socket.recv_fds(handover, _INTRODUCTION_BYTES, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                told, descriptors = b"", []
            if not descriptors:
                # The front-end is gone.
                asyncio.get_running_loop().remove_reader(handover)
                return
            connection = socket.socket(fileno=descriptors[0])
            connection.setblocking(False)
            client, server, scheme = orjson.loads(told)
            introduction = _Introduction(_address(client), _address(server), scheme)
            self._connect(connection, introduction, make_protocol)

    def _connect(
        self, connection: socket.socket, introduction: _Introduction, make_protocol: MakeProtocol
    ) -> None:
        def make() -> OpenHttpProtocol:
            protocol = make_protocol()
            protocol.introduced = introduction.tell
            return protocol

        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(make, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hear(self, front_end: _FrontEnd, report: Report) -> None:
        for protocol, taken in report["requests"].items():
            self._requests[protocol].add(taken)
        self.clients.refused_connections += report["refused_connections"]
        self.clients.refused_bytes += report["refused_bytes"]
        front_end.buffered_bytes = report["buffered_bytes"]
        self._count_buffered()

    def _count_buffered(self) -> None:
        self.clients.buffered_bytes = sum(each.buffered_bytes for each in self._running.values())


@dataclass(frozen=True, slots=True)
class _Introduction:
    """Whom a connection that is passed on is of."""

    client: tuple[str, int] | None
    server: tuple[str, int] | None
    scheme: Literal["http", "https"]

    def tell(self, protocol: OpenHttpProtocol) -> None:
        protocol.speak_for(self.client, self.server, self.scheme)


class _Nothing:
    """Listens to nobody: that is what front-ends do, and they are told to stop before this is."""

    def close(self) -> None:
        return

    async def wait_closed(self) -> None:
        return


def _spawn(inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    """The same code as ours, whatever lies in the current directory. Raises OSError."""
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, *map(str, inherited)],
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _address(told: list[Any] | None) -> tuple[str, int] | None:
    return None if told is None else (told[0], told[1])


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Blocks until it has ended, by force if need be."""
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
