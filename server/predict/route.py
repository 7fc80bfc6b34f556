"""POST /predict: parse, one call, shape the answer."""

from __future__ import annotations

import asyncio
import logging

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotdelta.chain import Position
from hotdelta.errors import HotdeltaError, NotReadyError, PositionNotReachedError
from hotdelta.logs import event
from server.http.connection_limits import BufferedBytes
from server.http.error_responses import error_response, status_of
from server.http.request_body import read_body
from server.predict.answer import write_answer
from server.predict.batching import Batcher
from server.predict.position_wait import PositionWait
from server.predict.request import PredictRequest, read_request
from server.served_model import ServedModel
from server.settings import Settings

logger = logging.getLogger(__name__)

VERSION_HEADER = "X-Model-Version"


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


def _not_reached(wanted: Position, live: Position | None) -> PositionNotReachedError:
    return PositionNotReachedError(
        f"position {wanted} is not served yet, {live or 'no position'} is",
        wanted=str(wanted),
        live=str(live) if live else None,
        hint="try again later, or give wait_ms",
    )
