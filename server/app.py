"""Builds the application: everything that answers HTTP, around models that it starts and stops."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import hotdelta
from hotdelta.errors import HotdeltaError, UnauthorizedError
from server.admin.fleet_routes import fleet_router
from server.admin.routes import ADMIN_PATHS, admin_router
from server.admin.tokens import AdminTokens
from server.configuration import Configuration
from server.dashboard.pages import DASHBOARD_PATHS, dashboard_routes
from server.dashboard.stream import Stream, make_stream
from server.figures import RequestFigures
from server.http import error_responses
from server.http.body_route import BodyRoute, Respond
from server.http.connection_limits import BufferedBytes, ConnectionLimits
from server.http.openapi import DescribedModel, Description
from server.metrics.collector import ServerCollector
from server.metrics.route import metrics_router
from server.models.by_name import PREDICT_BY_NAME, is_predict_by_name, plane_of
from server.models.fleet import Fleet, MakeModel
from server.models.models import Models
from server.predict import route as predict_route
from server.predict.route import PredictRoute
from server.protocols.open_inference import rest as open_inference
from server.protocols.open_inference.rest import OpenInference, is_inference_call
from server.protocols.tensorflow_serving import rest as tensorflow_serving
from server.protocols.tensorflow_serving.examples import takes_examples
from server.protocols.tensorflow_serving.rest import TensorFlowServing, is_serving_call
from server.status.docs_page import docs_router
from server.status.readiness import READY_PATHS, is_readiness, tell_stranger
from server.status.routes import OPEN_PATHS, status_router
from server.tokens import PredictTokens

if TYPE_CHECKING:
    from server.dashboard.fleet import Fleet as Others
    from server.rpc.listening import RpcServer

_PREDICT = "/predict"
_REST_SECONDS = 5.0


class _Application(FastAPI):
    """FastAPI for all but predictions: its middleware and routing would add a third to what one costs."""

    predict: ASGIApp
    predict_by_name: ASGIApp
    serving: ASGIApp
    inference: ASGIApp
    tokens: PredictTokens | None = None
    needs_no_token: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.tokens is not None and (refusal := _refusal(scope, self.tokens, self.needs_no_token)):
            if is_readiness(scope):
                await tell_stranger(super().__call__, scope, receive, send)
            else:
                await refusal(scope, receive, send)
        else:
            await self._app_for(scope)(scope, receive, send)

    def _app_for(self, scope: Scope) -> ASGIApp:
        """Paths that only describe something are FastAPI's, which knows their methods."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path: str = scope["path"]
            if path == _PREDICT:
                return self.predict
            if is_serving_call(path):
                return self.serving
            if is_predict_by_name(path):
                return self.predict_by_name
            if is_inference_call(path):
                return self.inference
        return super().__call__


def _refusal(scope: Scope, tokens: PredictTokens, needs_none: frozenset[str]) -> Response | None:
    """What somebody is told who may not ask, before his body is read. Routes that nobody thought of need a token."""
    if scope["type"] != "http" or scope["path"] in needs_none:
        return None
    try:
        tokens.require(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))
    except UnauthorizedError as error:
        return error_responses.error_response(error)
    return None


def create_app(
    configuration: Configuration,
    make_model: MakeModel,
    *,
    reread: Callable[[], Configuration] | None = None,
    after_removal: Callable[[], None] = lambda: None,
    reading_token: str = "",
) -> FastAPI:
    """The application. Nothing runs before its start-up; after its shut-down `state.is_at_rest` tells if all ended.

    `reading_token`: for other servers that want one.

    `state.limits` is what the connections to it must go by, `state.fleet` what may be told to change the models,
    `state.rpc` what answers gRPC beside it, or None, `state.leave_others` what to call when it begins to stop,
    `state.front_ends` who takes its connections in its place, or None.
    """
    settings = configuration.server
    limits = ConnectionLimits(
        settings.max_connections, settings.client_timeout_seconds, BufferedBytes(settings.max_buffered_bytes)
    )
    fleet = Fleet(configuration, make_model, reread=reread, after_removal=after_removal)
    models = fleet.models
    serving, inference = TensorFlowServing(models), OpenInference(models)

    requests: dict[str, RequestFigures] = {}

    def route(respond: Respond, protocol: str) -> ASGIApp:
        figures = requests.setdefault(protocol, RequestFigures())
        bodies = BodyRoute(
            respond, max_body_bytes=settings.max_body_bytes, buffered=limits.buffered, figures=figures
        )
        return ServerErrorMiddleware(bodies, handler=error_responses.answer_unexpected)

    app = _Application(
        title="hotdelta",
        version=hotdelta.__version__,
        description="Predictions from a model that is seconds old; each answer says which position it came from.",
        lifespan=_run,
        docs_url=None,
        redoc_url=None,
        # It would send clients to http:// also when a proxy speaks TLS for us.
        redirect_slashes=False,
    )
    app.state.limits = limits
    app.state.fleet = fleet
    admins = AdminTokens.read(settings.admin_token_file)
    others = _make_fleet(settings.fleet, reading_token)
    stream = make_stream(models, requests, takes_orders=bool(admins.tokens), fleet=others)
    app.state.stream = stream
    if settings.predict_token_file is not None:
        app.tokens = PredictTokens(settings.predict_token_file, more=admins.tokens)
    app.state.rpc = None
    if settings.grpc_port is not None:
        # Nobody who does without it pays for gRPC.
        from server.protocols.rpc_server import create_rpc_server

        app.state.rpc = create_rpc_server(settings, models, limits.buffered, requests, app.tokens)
    app.state.front_ends = None
    if settings.front_ends:
        # Nobody who does without them pays for them.
        from server.front.front_ends import FrontEnds

        app.state.front_ends = FrontEnds(settings, models, requests, more_tokens=admins.tokens)
    app.state.leave_others = functools.partial(_leave_others, stream, app.state.rpc)
    # Orders have tokens of their own.
    app.needs_no_token = OPEN_PATHS | ADMIN_PATHS | DASHBOARD_PATHS
    app.predict = route(PredictRoute(models.default_plane).respond, predict_route.PROTOCOL)
    find = functools.partial(plane_of, models)
    app.predict_by_name = route(PredictRoute(find).respond, predict_route.PROTOCOL)
    app.serving = route(serving.respond, tensorflow_serving.PROTOCOL)
    app.inference = route(inference.respond, open_inference.PROTOCOL)
    # For what is no POST: that is refused as on every other path.
    app.router.routes.append(Route(_PREDICT, app.predict, methods=["POST"]))
    app.router.routes.append(Route(PREDICT_BY_NAME, app.predict_by_name, methods=["POST"]))
    app.router.routes += serving.routes(app.serving) + inference.routes(app.inference)
    app.router.routes += dashboard_routes(stream)
    app.include_router(status_router(fleet))
    app.include_router(docs_router(app.title))
    app.include_router(
        metrics_router(ServerCollector(models, requests, limits, app.state.front_ends), app.state.front_ends)
    )
    app.include_router(admin_router(models, admins))
    app.include_router(fleet_router(fleet, admins))
    app.add_exception_handler(HotdeltaError, error_responses.answer_hotdelta_error)
    app.add_exception_handler(HTTPException, error_responses.answer_http_exception)
    app.add_exception_handler(Exception, error_responses.answer_unexpected)
    open_paths = None if app.tokens is None else app.needs_no_token | READY_PATHS
    described = Description(app, functools.partial(_described, models), open_paths=open_paths)
    app.openapi = described.document  # type: ignore[method-assign]
    return app


def _make_fleet(urls: Sequence[str], token: str) -> Others | None:
    """Who has no others to show does without httpx."""
    if not urls:
        return None
    from server.dashboard.fleet import Fleet as Others

    return Others(urls, token=token)


def _described(models: Models) -> list[DescribedModel]:
    """What is served by now, under the names that it has."""
    found = []
    for entry in models.entries():
        name, version, plane = entry.name, entry.status().export_version, entry.plane
        if name is not None and version is not None:
            signatures = plane.signatures
            limits = entry.settings.max_rows, plane.max_wait_ms
            found.append(
                DescribedModel(name, version, signatures, *limits, takes_examples=takes_examples(signatures))
            )
    return found


def _leave_others(stream: Stream, rpc: RpcServer | None) -> None:
    """Who looks, and who asks by gRPC, keeps no server from stopping."""
    stream.close()
    if rpc is not None:
        rpc.leave()


@contextlib.asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    fleet: Fleet = app.state.fleet
    rpc: RpcServer | None = app.state.rpc
    fleet.start()
    try:
        if rpc is not None:
            await rpc.start()
        async with app.state.stream.running():
            yield
    finally:
        if rpc is not None:
            await rpc.stop()
        app.state.is_at_rest = await fleet.stop(_REST_SECONDS)
