"""All that hotdelta uses of uvicorn without a promise that the next release still has it. No other module may.

A subclass of `OpenHttpProtocol` works with attributes of uvicorn's protocol and of its cycle of request and response.
tests/test_private_names.py looks each of them up in the uvicorn that is installed, and names the one that is gone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Literal, Protocol

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

__all__ = (
    "HIGH_WATER_LIMIT",
    "STATUS_LINE",
    "FlowControl",
    "OpenHttpProtocol",
    "OpenServer",
    "RequestResponseCycle",
)


class Listening(Protocol):
    """What a server is told when it stops: of asyncio, or of ours."""

    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


class OpenServer(uvicorn.Server):
    """uvicorn for subclasses: who listens may be chosen (`listen`)."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self.servers: list[Any] = [await self.listen(each) for each in sockets or []]

    async def listen(self, listener: socket.socket) -> Listening:
        loop = asyncio.get_running_loop()
        return await loop.create_server(self.make_protocol, sock=listener, backlog=self.config.backlog)

    def make_protocol(self) -> OpenHttpProtocol:
        """Of one connection."""
        make: Any = self.config.http_protocol_class
        protocol: OpenHttpProtocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


class OpenHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 for subclasses: `start_answer` may be replaced.

    `introduced`: what is called when the connection is there, for one that somebody else has accepted.
    """

    introduced: Callable[[OpenHttpProtocol], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.introduced is not None:
            self.introduced(self)

    def speak_for(
        self, client: tuple[str, int] | None, server: tuple[str, int] | None, scheme: Literal["http", "https"]
    ) -> None:
        """Whoever is connected to us has this client, and speaks with it so."""
        self.client, self.server, self.scheme = client, server, scheme

    def start_answer(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """The turn of a request has come: call the application."""
        super()._start_asgi_task(cycle, app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.start_answer(cycle, app)

    def stop_idle_timer(self) -> None:
        """Something came: the connection is not closed for idleness, if that was waited for."""
        self._unset_keepalive_if_required()
