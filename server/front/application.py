"""What a front-end answers: predictions, read by the code that reads them everywhere. The rest is passed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hotdelta.errors import HotdeltaError, NotReadyError, UnauthorizedError
from server.figures import RequestFigures
from server.front.line import AnswerError, ModelLine, OutdatedError
from server.front.messages import PROTOCOLS
from server.front.planes import ToldModels
from server.http import error_responses
from server.http.body_route import BodyRoute, Respond
from server.http.connection_limits import ConnectionLimits
from server.models.by_name import is_predict_by_name, name_in
from server.models.target import Target
from server.predict import route as predict_route
from server.predict.route import PredictRoute
from server.protocols.open_inference import rest as open_inference
from server.protocols.open_inference.rest import InferenceCalls, is_inference_call
from server.protocols.tensorflow_serving import rest as tensorflow_serving
from server.protocols.tensorflow_serving.rest import ServingCalls, is_serving_call
from server.tokens import PredictTokens

_PREDICT = "/predict"
# An export would have to be replaced as often while one request is answered.
_MOST_READINGS = 20


@dataclass(frozen=True, slots=True)
class _Route:
    """A protocol: which model a path of it means, and who answers."""

    target_in: Callable[[str], Target | None]
    answer: ASGIApp


class FrontApplication:
    """Belongs to the event loop. `line`: to the model's process, when it is open; `forward`: for all else."""

    def __init__(
        self,
        line: Callable[[], ModelLine],
        forward: ASGIApp,
        limits: ConnectionLimits,
        *,
        max_body_bytes: int,
        tokens: PredictTokens | None,
    ) -> None:
        self._line = line
        self._forward = forward
        self._limits = limits
        self._max_body_bytes = max_body_bytes
        self._tokens = tokens
        self._told_refusals = [0, 0]
        self.figures = {protocol: RequestFigures() for protocol in PROTOCOLS}

    def open(self) -> None:
        """When the line is open."""
        models = self._models = ToldModels(self._line())
        own = self._route(PredictRoute(lambda _: models.plane(None)).respond, predict_route.PROTOCOL)
        by_name = PredictRoute(lambda scope: models.plane(_named_in(scope["path"])))
        self._predict = own
        self._by_name = _Route(_named_in, self._route(by_name.respond, predict_route.PROTOCOL))
        self._serving = _Route(
            tensorflow_serving.target_in,
            self._route(ServingCalls(models.plane).respond, tensorflow_serving.PROTOCOL),
        )
        self._inference = _Route(
            open_inference.target_in,
            self._route(InferenceCalls(models.plane).respond, open_inference.PROTOCOL),
        )

    def report(self) -> dict[str, Any]:
        """What was counted since the last time."""
        refused = [self._limits.refusals.count, self._limits.buffered.refusals.count]
        connections, buffered = (now - told for now, told in zip(refused, self._told_refusals, strict=True))
        self._told_refusals = refused
        return {
            "requests": {
                protocol: figures.take() for protocol, figures in self.figures.items() if figures.statuses
            },
            "refused_connections": connections,
            "refused_bytes": buffered,
            "buffered_bytes": self._limits.buffered.bytes,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer_for(scope)
        if answer is None:
            await self._forward(scope, receive, send)
        elif self._tokens is not None and (refusal := _refusal(scope, self._tokens)):
            await refusal(scope, receive, send)
        else:
            await answer(scope, receive, send)

    def _answer_for(self, scope: Scope) -> ASGIApp | None:
        """None for what is no prediction, or one of a model that is not known here as one that can be asked."""
        if scope["method"] != "POST":
            return None
        path: str = scope["path"]
        if path == _PREDICT:
            return self._predict if self._knows(None) else None
        route = self._route_for(path)
        if route is None or (target := route.target_in(path)) is None:
            return None
        return route.answer if self._knows(target) else None

    def _route_for(self, path: str) -> _Route | None:
        if is_serving_call(path):
            return self._serving
        if is_predict_by_name(path):
            return self._by_name
        return self._inference if is_inference_call(path) else None

    def _knows(self, target: Target | None) -> bool:
        if self._models.knows(target):
            return True
        self._line().look()
        return False

    def _route(self, respond: Respond, protocol: str) -> ASGIApp:
        async def read_again(scope: Scope, body: bytes) -> Response:
            return await self._respond(respond, scope, body)

        bodies = BodyRoute(
            read_again,
            max_body_bytes=self._max_body_bytes,
            buffered=self._limits.buffered,
            figures=self.figures[protocol],
        )
        return ServerErrorMiddleware(bodies, handler=error_responses.answer_unexpected)

    async def _respond(self, respond: Respond, scope: Scope, body: bytes) -> Response:
        """Reads the request again when the model has become another one meanwhile."""
        for _ in range(_MOST_READINGS):
            try:
                return await self._respond_once(respond, scope, body)
            except OutdatedError:
                continue
        raise NotReadyError("the model has changed again and again while this was read", hint="try again")

    async def _respond_once(self, respond: Respond, scope: Scope, body: bytes) -> Response:
        """Raises OutdatedError."""
        try:
            return await respond(scope, body)
        except AnswerError as told:
            raise told.error from told
        except HotdeltaError:
            # It cannot be read: by what was told last, which may have changed.
            await self._line().check()
            raise


def _named_in(path: str) -> Target | None:
    name = name_in(path)
    return None if name is None else Target(name)


def _refusal(scope: Scope, tokens: PredictTokens) -> Response | None:
    """What somebody is told who may not ask, before his body is read."""
    try:
        tokens.require(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))
    except UnauthorizedError as error:
        return error_responses.error_response(error)
    return None
