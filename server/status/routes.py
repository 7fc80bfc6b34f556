"""The GET routes: what is served, whether this process lives, and whether it can answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

import hotdelta
from server.admin.fleet_routes import FLEET_ROUTES
from server.admin.routes import ADMIN_ROUTES
from server.http.error_responses import RETRY_AFTER_SECONDS, json_response
from server.models.entry import Entry
from server.models.fleet import Fleet
from server.models.mirrored import stores_of
from server.models.models import Models
from server.protocols.open_inference.rest import INFERENCE_ROUTES
from server.protocols.tensorflow_serving.rest import SERVING_ROUTES
from server.status.docs_page import DOCS_PATHS
from server.status.version_document import version_document

_ROUTES = {
    **ADMIN_ROUTES,
    **{
        f"{route.replace('/model/', '/models/{model}/')}": "the same for one of several"
        for route in ADMIN_ROUTES
    },
    **FLEET_ROUTES,
    "POST /predict": 'predict: {"inputs": {name: array}} or {"instances": [row, ...]}',
    "POST /models/{model}/predict": "the same from one of several, by its name or a label",
    **SERVING_ROUTES,
    **INFERENCE_ROUTES,
    "GET /model/version": "what is served, how old it is, and how the last update went",
    "GET /models/{model}/version": "the same of one of several",
    "GET /models/{model}/ready": "200 when this one can answer, else 503 and what is waited for",
    "GET /models": "the models, their labels, and how they are",
    "GET /labels": "which model each label is at",
    "GET /readyz": "200 when predictions can be answered, else 503 and what is waited for",
    "GET /healthz": "200 while this process and the threads that update models are alive",
    "GET /metrics": "counts and times for Prometheus",
    "GET /openapi.json": "the description of all this; GET /docs shows it in a browser",
}
# Whether it lives and can answer, and how it is asked. What is served, and how it is answered, is not among them;
# whether it can answer strangers are told by `readiness`.
OPEN_PATHS = frozenset({"/", "/healthz", "/v2/health/live", "/openapi.json"}) | DOCS_PATHS


def status_router(fleet: Fleet) -> APIRouter:
    router = APIRouter()
    server, by_name = _OfServer(fleet), _OfModels(fleet.models)
    for path, endpoint, summary in (
        ("/", server.routes, "The routes"),
        ("/model/version", by_name.default_version, "What is served"),
        ("/models", server.models, "The models"),
        ("/models/{model}/version", by_name.version, "What is served of one model"),
        ("/models/{model}/ready", by_name.ready, "Whether one model can be asked"),
        ("/labels", server.labels, "Which model each label is at"),
        ("/readyz", server.ready, "Whether predictions can be answered"),
        ("/healthz", server.healthy, "Whether this process is alive"),
    ):
        router.add_api_route(path, endpoint, methods=["GET"], summary=summary)
        # Load balancers ask this way too. Not described: a HEAD is there wherever a GET is.
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    return router


class _OfModels:
    """What is told of one model: the default one, or one by its name or a label."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def default_version(self) -> Response:
        return _version_of(self._models.default())

    async def version(self, model: str) -> Response:
        return _version_of(self._models.entry(model))

    async def ready(self, model: str) -> Response:
        return _readiness(_readiness_of(self._models.entry(model)))


class _OfServer:
    """What is told of all together."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._models = fleet.models

    async def routes(self) -> Response:
        return json_response({"name": "hotdelta", "version": hotdelta.__version__, "routes": _ROUTES})

    async def models(self) -> Response:
        default = self._models.default() if self._models.has_default else None
        listed = [
            {
                "name": entry.name,
                "export_version": (status := entry.status()).export_version,
                "labels": self._models.labels_of(entry),
                "is_default": entry is default,
                **_readiness_of(entry),
                "seconds_behind": round(status.seconds_behind, 3),
                "updates": status.updates,
            }
            for entry in self._models.entries()
        ]
        return json_response({"models": listed})

    async def labels(self) -> Response:
        places = {
            label: {"model": name, "before": self._fleet.before(label)}
            for label, name in self._models.labels.items()
        }
        return json_response({"labels": places})

    async def ready(self) -> Response:
        if self._models.is_one_model:
            return _readiness(_readiness_of(self._models.default()))
        reason = self._models.why_not_ready()
        each = {str(entry.name): _readiness_of(entry) for entry in self._models.entries()}
        return _readiness({"is_ready": reason is None, "reason": reason, "models": each})

    async def healthy(self) -> Response:
        entries = self._models.entries()
        document = {
            "updates": all(entry.model.is_alive for entry in entries),
            "predictions": all(entry.batcher.is_alive() for entry in entries),
        }
        return json_response(document, status=200 if all(document.values()) else 500)


def _version_of(entry: Entry) -> Response:
    return json_response(
        version_document(entry.status(), model=entry.plane.told_name, stores=stores_of(entry.model))
    )


def _readiness_of(entry: Entry) -> dict[str, Any]:
    status = entry.status()
    return {
        "is_ready": status.is_ready,
        "position": str(status.node) if status.node else None,
        "update_state": str(status.state),
        "reason": status.reason or None,
    }


def _readiness(document: dict[str, Any]) -> Response:
    if document["is_ready"]:
        return json_response(document)
    return json_response(document, status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
