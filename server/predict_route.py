"""POST /predict: parse, one call, shape the answer."""

from __future__ import annotations

import asyncio
import logging

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotdelta.chain import Position
from hotdelta.errors import BodyTooLargeError, HotdeltaError, NotReadyError, PositionNotReachedError
from hotdelta.logs import event
from server.batching import Batcher
from server.connection_limits import BufferedBytes
from server.error_responses import error_response, status_of
from server.position_wait import PositionWait
from server.predict_answer import write_answer
from server.predict_request import PredictRequest, read_request
from server.served_model import ServedModel
from server.settings import Settings

logger = logging.getLogger(__name__)

VERSION_HEADER = "X-Model-Version"
_SMALLER = "send fewer rows, or raise --max-body-bytes"


class PredictRoute:
    """Answers predictions. Belongs to the event loop; the model runs in the threads of the batcher."""

    def __init__(
        self,
        settings: Settings,
        model: ServedModel,
        batcher: Batcher,
        wait: PositionWait,
        buffered: BufferedBytes,
    ) -> None:
        self._settings = settings
        self._model = model
        self._batcher = batcher
        self._wait = wait
        self._buffered = buffered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(scope, receive)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        try:
            body = await read_body(scope, receive, self._settings.max_body_bytes, self._buffered)
            try:
                return await self._predict(body)
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

    async def _predict(self, body: bytes) -> Response:
        asked = read_request(body, self._model.signatures, max_wait_ms=self._settings.max_wait_ms)
        if asked.min_position is not None:
            await self._reach(asked.min_position, asked)
        outputs, version = await self._batcher.predict(asked.signature, asked.feeds)
        served = version.position
        if asked.min_position is not None and (served is None or served < asked.min_position):
            # It was served a moment ago: the model went back in between.
            raise _not_reached(asked.min_position, served)
        content = write_answer(outputs, version, rows=asked.rows)
        headers = {} if served is None else {VERSION_HEADER: str(served)}
        return Response(content, headers=headers, media_type="application/json")

    async def _reach(self, wanted: Position, asked: PredictRequest) -> None:
        if not await self._wait.until(wanted, asked.wait_ms / 1000):
            raise _not_reached(wanted, self._wait.live_position())


async def read_body(
    scope: Scope,
    receive: Receive,
    max_bytes: int,
    buffered: BufferedBytes,
    *,
    hint: str = _SMALLER,
) -> bytes:
    """The whole body, but never much more of it than is allowed. Its bytes count as buffered until they are given back.

    Raises BodyTooLargeError, OverloadedError, ClientDisconnect.
    """
    declared = dict(scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes, hint)
    chunks, size, is_complete = [], 0, False
    try:
        while not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            if size + len(chunks[-1]) > max_bytes:
                raise _too_large(max_bytes, hint)
            buffered.take(len(chunks[-1]))
            size += len(chunks[-1])
            is_complete = not message.get("more_body", False)
    except BaseException:
        buffered.give_back(size)
        raise
    return b"".join(chunks)


def _too_large(max_bytes: int, hint: str) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {max_bytes} bytes", max_bytes=max_bytes, hint=hint)


def _not_reached(wanted: Position, live: Position | None) -> PositionNotReachedError:
    return PositionNotReachedError(
        f"position {wanted} is not served yet, {live or 'no position'} is",
        wanted=str(wanted),
        live=str(live) if live else None,
        hint="try again later, or give wait_ms",
    )
