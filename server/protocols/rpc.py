"""What the gRPC protocols have in common: what a client may ask beside the message, and the health of the models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from hotdelta.chain import Position
from hotdelta.errors import RequestError, UnknownModelError
from server.models.models import Models
from server.predict.request import min_position_of, wait_ms_of
from server.rpc.calls import Call, Service
from server.rpc.messages import Message, kind

_LOOK_SECONDS = 0.2


def wishes_of(call: Call, given: Mapping[str, Any], max_wait_ms: int) -> tuple[Position | None, int]:
    """`min_position` and `wait_ms`, from the metadata or else from what the message has. Raises RequestError."""
    position, wait_ms = call.metadata("min_position"), call.metadata("wait_ms")
    wishes = dict(given)
    if position is not None:
        wishes["min_position"] = position
    if wait_ms is not None:
        wishes["wait_ms"] = _whole_number("wait_ms", wait_ms)
    return min_position_of(wishes), wait_ms_of(wishes, max_wait_ms)


def _whole_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(f"{name} is {text!r}", hint="give a whole number")
    return int(text)


class Health:
    """grpc.health.v1: of the whole server, its services, and each model by its name. Belongs to the event loop."""

    def __init__(self, models: Models, services: tuple[str, ...]) -> None:
        self._models = models
        self._services = services
        self._response = kind("grpc.health.v1.HealthCheckResponse")

    def service(self) -> Service:
        return Service(
            "grpc.health.v1.Health",
            methods={"Check": self._check},
            streams={"Watch": self._watch},
            needs_no_token=frozenset({"Check", "Watch"}),
        )

    async def _check(self, request: Message, _call: Call) -> Message:
        is_ready = self._is_ready(request.service)
        if is_ready is None:
            raise UnknownModelError(
                f"there is no service or model {request.service!r}", hint="'' is the whole server"
            )
        return self._response(status="SERVING" if is_ready else "NOT_SERVING")

    async def _watch(self, requests: AsyncIterator[Message], _call: Call) -> AsyncIterator[Message]:
        """Each change from now on, until the client has heard enough."""
        words = {None: "SERVICE_UNKNOWN", True: "SERVING", False: "NOT_SERVING"}
        async for request in requests:
            told = ""
            while True:
                word = words[self._is_ready(request.service)]
                if word != told:
                    told = word
                    yield self._response(status=word)
                await asyncio.sleep(_LOOK_SECONDS)

    def _is_ready(self, name: str) -> bool | None:
        """None when nothing has this name."""
        if name == "" or name in self._services:
            return self._models.why_not_ready() is None
        try:
            return self._models.entry(name).status().is_ready
        except UnknownModelError:
            return None
