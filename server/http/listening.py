"""The socket, and the event loop that answers on it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Literal, Protocol

import uvicorn
from starlette.types import ASGIApp

from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from server.http.connection_limits import ConnectionLimits
from server.http.handshakes import MAX_HANDSHAKES, Handshakes
from server.http.protocol import JsonHttpProtocol
from server.http.uvicorn_internals import Listening, OpenHttpProtocol, OpenServer
from server.tls import TlsFiles
from server.watched_files import WatchedFiles

logger = logging.getLogger(__name__)

# Longer than clients and load balancers (60 s) keep an idle connection: who closes last never resets a request.
_KEEP_ALIVE_SECONDS = 75

# Of the loader, the log, TensorFlow.
_OTHER_FILES = 256

_ANOTHER_HOST = "give an address of this machine"
_ANOTHER_PORT = "give another {} (0 chooses a free one), or stop what uses it"
_BIND_HINTS: dict[int | None, str] = {
    errno.EADDRNOTAVAIL: f"{_ANOTHER_HOST}, or 0.0.0.0 for all of them",
    errno.EACCES: "ports below 1024 are for the superuser: give another {} (0 chooses a free one)",
}


def bind(host: str, port: int, *, flag: str = "--port") -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigurationError when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"--host {host}: {error.strerror}", hint=_ANOTHER_HOST) from error
    except ValueError as error:
        # Labels that are empty or longer than 63 letters; null bytes.
        raise ConfigurationError(f"--host {host!r} is not a host name", hint=_ANOTHER_HOST) from error
    # A server that was just killed leaves its port in TIME_WAIT; its successor must not wait for that.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            hint=_BIND_HINTS.get(error.errno, _ANOTHER_PORT).format(flag),
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """As it stands in a URL."""
    host, port = listener.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


class HangUps:
    """SIGHUP as a word to the server, and not its end. One that comes before the event loop runs waits for it."""

    def __init__(self) -> None:
        self.when_heard: Callable[[], None] = lambda: None
        self._is_waiting = False
        signal.signal(signal.SIGHUP, self._note)

    def listen(self) -> None:
        """In the event loop, where `when_heard` is called from now on."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.when_heard)
        if self._is_waiting:
            self.when_heard()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._is_waiting = True


class FrontEnds(Protocol):
    """Other processes that listen in place of this one."""

    async def listen(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], OpenHttpProtocol],
        *,
        is_stopping: Callable[[], bool],
    ) -> Listening:
        """When they answer, or it is time to stop. `make_protocol`: of connections for what they do not answer."""

    async def stop(self) -> None:
        """When they have answered what they were asked."""


def run(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stop_seconds: float,
    limits: ConnectionLimits,
    tls: TlsFiles | None = None,
    announcement: Callable[[str], str],
    hang_ups: HangUps | None = None,
    leave_others: Callable[[], None] = lambda: None,
    front_ends: FrontEnds | None = None,
) -> None:
    """Answers until SIGTERM or SIGINT; then requests in flight have `stop_seconds` to finish.

    `announcement` makes the line that is printed when it answers out of the URL at which it does. `hang_ups`: who hears
    of SIGHUP; None: that means what it meant before. `leave_others` is called when it begins to stop, for what answers
    on other ports, or without an end. `front_ends`: who listens in place of this process, if somebody does.
    """
    allow_files(limits.max_connections if tls is None else limits.max_connections + MAX_HANDSHAKES)
    config = configure(app, stop_seconds=stop_seconds, limits=limits)
    server = Listener(config, limits, tls, announcement, hang_ups, leave_others, front_ends)

    def leave(_number: int, _frame: FrameType | None) -> None:
        """For signals that come before uvicorn listens to them. At its end it raises those that it handled again."""
        if not server.should_exit:
            os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    server.run(sockets=[listener])


def allow_files(connections: int) -> None:
    """Each is an open file for the system, which often allows 1,024; without one to spare no update could be read."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        event(
            logger,
            logging.WARNING,
            "the system allows fewer open files than --max-connections needs",
            allowed=allowed,
            needed=wanted,
            hint="lower it, or raise ulimit -n",
        )


def configure(
    app: ASGIApp, *, stop_seconds: float, limits: ConnectionLimits, lifespan: Literal["on", "off"] = "on"
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=functools.partial(JsonHttpProtocol, limits=limits),  # type: ignore[arg-type]
        ws="none",
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(stop_seconds)),
    )


class Listener(OpenServer):
    """Speaks TLS if there are files for it, and says where as soon as, and not before, somebody answers there."""

    def __init__(
        self,
        config: uvicorn.Config,
        limits: ConnectionLimits,
        tls: TlsFiles | None,
        announcement: Callable[[str], str],
        hang_ups: HangUps | None = None,
        leave_others: Callable[[], None] = lambda: None,
        front_ends: FrontEnds | None = None,
    ) -> None:
        """Raises ConfigurationError when the files for TLS cannot be used."""
        super().__init__(config)
        self._limits = limits
        self._contexts = None if tls is None else WatchedFiles(tls.paths, tls.context)
        self._announcement = announcement
        self._hang_ups = hang_ups
        self._leave_others = leave_others
        self._front_ends = front_ends

    async def listen(self, listener: socket.socket) -> Listening:
        if self._front_ends is not None:
            return await self._front_ends.listen(
                listener, self.make_protocol, is_stopping=lambda: self.should_exit
            )
        if self._contexts is None:
            return await super().listen(listener)
        seconds = self._limits.client_timeout_seconds
        return Handshakes(listener, self.make_protocol, self._contexts.current, seconds=seconds)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leave_others()
        if self._front_ends is not None:
            await self._front_ends.stop()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._hang_ups is not None:
            self._hang_ups.listen()
        scheme = "http" if self._contexts is None else "https"
        for listener in sockets or []:
            line = self._announcement(f"{scheme}://{address_of(listener)}")
            # One write, where print makes two when nothing is buffered: log lines may go to the same pipe.
            # That it cannot be written (it is closed, or the disk is full) is no reason not to answer.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.write(sys.stdout.fileno(), f"{line}\n".encode())
