"""All that hotdelta uses of uvicorn without a promise that the next release still has it. No other module may.

A subclass of `OpenHttpProtocol` works with attributes of uvicorn's protocol and of its cycle of request and response.
tests/test_private_names.py looks each of them up in the uvicorn that is installed, and names the one that is gone.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

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

    def make_protocol(self) -> asyncio.Protocol:
        """Of one connection."""
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


class OpenHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 for subclasses: `start_answer` may be replaced."""

    def start_answer(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """The turn of a request has come: call the application."""
        super()._start_asgi_task(cycle, app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.start_answer(cycle, app)

    def stop_idle_timer(self) -> None:
        """Something came: the connection is not closed for idleness, if that was waited for."""
        self._unset_keepalive_if_required()
