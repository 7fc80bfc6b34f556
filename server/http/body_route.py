"""A route of which nobody but its protocol knows what is in the body: read, answered, given back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotdelta.errors import HotdeltaError, NotReadyError
from hotdelta.logs import event
from server.figures import RequestFigures
from server.http.connection_limits import BufferedBytes
from server.http.error_responses import error_response, status_of
from server.http.request_body import read_body

logger = logging.getLogger(__name__)

Respond = Callable[[Scope, bytes], Awaitable[Response]]


class BodyRoute:
    """Reads the body within its limits, and answers every error of ours. Belongs to the event loop."""

    def __init__(
        self, respond: Respond, *, max_body_bytes: int, buffered: BufferedBytes, figures: RequestFigures
    ) -> None:
        self._respond = respond
        self._max_body_bytes = max_body_bytes
        self._buffered = buffered
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 500
        try:
            response = await self._answer(scope, receive)
            status = response.status_code
        finally:
            self._figures.observe(status, time.perf_counter() - started)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        try:
            body = await read_body(scope, receive, self._max_body_bytes, self._buffered)
            try:
                return await self._respond(scope, body)
            finally:
                self._buffered.give_back(len(body))
        except HotdeltaError as error:
            if status_of(type(error)) == 500:
                event(logger, logging.ERROR, "a prediction failed", reason=error)
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=400)
        except asyncio.CancelledError:
            # The time that requests have after a signal to stop is over.
            return error_response(NotReadyError("the server is stopping", hint="ask another one"))
