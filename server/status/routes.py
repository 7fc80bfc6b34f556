"""The GET routes: what is served, whether this process lives, and whether it can answer."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

import hotdelta
from server.admin.routes import ADMIN_ROUTES
from server.http.error_responses import RETRY_AFTER_SECONDS, json_response
from server.predict.batching import Batcher
from server.protocols.open_inference.rest import INFERENCE_ROUTES
from server.protocols.tensorflow_serving.rest import SERVING_ROUTES
from server.served_model import ServedModel
from server.status.version_document import version_document

_ROUTES = {
    **ADMIN_ROUTES,
    "POST /predict": 'predict: {"inputs": {name: array}} or {"instances": [row, ...]}',
    **SERVING_ROUTES,
    **INFERENCE_ROUTES,
    "GET /model/version": "what is served, how old it is, and how the last update went",
    "GET /readyz": "200 when predictions can be answered, else 503 and what is waited for",
    "GET /healthz": "200 while this process and the thread that updates the model are alive",
    "GET /metrics": "counts and times for Prometheus",
    "GET /openapi.json": "the description of all this; GET /docs shows it in a browser",
}
# Whether it lives and can answer, and how it is asked. What is served, and how it is answered, is not among them.
OPEN_PATHS = frozenset(
    {"/", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/openapi.json", "/docs"}
)


def status_router(model: ServedModel, batcher: Batcher) -> APIRouter:
    router = APIRouter()

    @router.get("/", summary="The routes")
    async def routes() -> Response:
        return json_response({"name": "hotdelta", "version": hotdelta.__version__, "routes": _ROUTES})

    @router.get("/model/version", summary="What is served")
    async def model_version() -> Response:
        return json_response(version_document(model.status()))

    @router.get("/readyz", summary="Whether predictions can be answered")
    async def ready() -> Response:
        status = model.status()
        document = {
            "is_ready": status.is_ready,
            "position": str(status.node) if status.node else None,
            "update_state": str(status.state),
            "reason": status.reason or None,
        }
        if status.is_ready:
            return json_response(document)
        return json_response(document, status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})

    @router.get("/healthz", summary="Whether this process is alive")
    async def healthy() -> Response:
        document = {"updates": model.is_alive, "predictions": batcher.is_alive()}
        return json_response(document, status=200 if all(document.values()) else 500)

    # Load balancers ask this way too. Not described: a HEAD is there wherever a GET is.
    for path, endpoint in (
        ("/", routes),
        ("/model/version", model_version),
        ("/readyz", ready),
        ("/healthz", healthy),
    ):
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    return router
