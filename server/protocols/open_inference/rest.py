"""The paths of the Open Inference Protocol."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from hotdelta.errors import RequestError
from server.http.error_responses import json_response
from server.models.models import Models
from server.models.target import Target
from server.predict.plane import Plane
from server.predict.route import answer_of
from server.protocols.open_inference.answer import write_answer
from server.protocols.open_inference.documents import (
    index_document,
    metadata_document,
    require_all_ready,
    require_ready,
    server_document,
)
from server.protocols.open_inference.request import read_request
from server.protocols.paths import target_of, tell, unknown_path

PROTOCOL = "open_inference"
V2 = "/v2"
INFERENCE_ROUTES = {
    "POST /v2/models/{model}/infer": "the same by the Open Inference Protocol; tensors as JSON or as bytes",
    "POST /v2/models/{model}/versions/{version}/infer": "only from this version of the export",
    "POST /v2/repository/index": "the models that are served here",
    "GET /v2": "what this server is, by the Open Inference Protocol",
    "GET /v2/health/live": "200 while it answers",
    "GET /v2/health/ready": "200 when predictions can be answered, else 503",
    "GET /v2/models/{model}": "its inputs and outputs",
    "GET /v2/models/{model}/versions/{version}": "the same of this version",
    "GET /v2/models/{model}/ready": "200 when it can be asked",
    "GET /v2/models/{model}/versions/{version}/ready": "the same of this version",
}

_JSON_SIZE = b"inference-header-content-length"
_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>\d+))?"
_INFER = re.compile(rf"{_MODEL}/infer")
_DOCUMENT = re.compile(rf"{_MODEL}(?P<ready>/ready)?")
_INDEX = "/v2/repository/index"


def is_inference_call(path: str) -> bool:
    return path == _INDEX or (path.startswith(f"{V2}/models/") and path.endswith("/infer"))


def target_in(path: str) -> Target | None:
    """The model that is asked to infer; None when the path is none of that."""
    match = _INFER.fullmatch(path)
    return None if match is None else target_of(match)


class InferenceCalls:
    """POST .../NAME/infer: translates JSON and bytes. `find`: the model of a name. Belongs to the event loop."""

    def __init__(self, find: Callable[[Target], Plane]) -> None:
        self._find = find

    async def respond(self, scope: Scope, body: bytes) -> Response:
        target = target_in(scope["path"])
        if target is None:
            raise unknown_path(scope["method"], scope["path"])
        plane = self._find(target)
        request = read_request(
            body,
            json_size=_json_size(scope),
            signatures=plane.signatures,
            max_wait_ms=plane.max_wait_ms,
        )
        outputs, version = await plane.predict(request.asked, protocol=PROTOCOL)
        target.require_version(version.export_version)
        answer = write_answer(request, target.name, outputs, version)
        response = answer_of(answer.content, version, plane.told_name)
        if answer.json_size is not None:
            response.headers["Inference-Header-Content-Length"] = str(answer.json_size)
            response.headers["Content-Type"] = "application/octet-stream"
        return response


class OpenInference:
    """The paths of the protocol, of all models. Belongs to the event loop."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._calls = InferenceCalls(models.plane)

    def routes(self, call: ASGIApp) -> list[Route]:
        """What FastAPI is to know: which methods the paths have, and what is no call."""
        calls = (f"{V2}/models/{{rest:path}}/infer", _INDEX)
        documents = (V2, f"{V2}/{{rest:path}}")
        return [
            *(Route(path, call, methods=["POST"]) for path in calls),
            *(Route(path, self.describe, methods=["GET"]) for path in documents),
        ]

    async def respond(self, scope: Scope, body: bytes) -> Response:
        """POST .../NAME/infer, and the index of the repository."""
        if scope["path"] == _INDEX:
            return json_response(index_document(self._models))
        return await self._calls.respond(scope, body)

    async def describe(self, request: Request) -> Response:
        """GET: the server, its health, the model."""
        path = request.scope["path"]
        return tell(path, self._document, is_call=is_inference_call(path))

    def _document(self, path: str) -> dict[str, Any]:
        if path == V2:
            return server_document("binary_tensor_data", "model_repository")
        if path == f"{V2}/health/live":
            return {"live": True}
        if path == f"{V2}/health/ready":
            require_all_ready(self._models)
            return {"ready": True}
        found = _DOCUMENT.fullmatch(path)
        if found is None:
            raise unknown_path("GET", path)
        entry, version = self._models.find(target_of(found))
        if found["ready"] is not None:
            require_ready(entry)
            return {"name": found["name"], "ready": True}
        return metadata_document(found["name"], version, entry.plane.signatures)


def _json_size(scope: Scope) -> int | None:
    """Raises RequestError."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if b"content-encoding" in headers and headers[b"content-encoding"] != b"identity":
        raise RequestError("the body is compressed", hint="send it as it is, without a Content-Encoding")
    given = headers.get(_JSON_SIZE)
    if given is None:
        return None
    if not given.isdigit() or len(given) > 18:
        raise RequestError(
            f"Inference-Header-Content-Length is {given.decode('latin-1')!r}", hint="give a number of bytes"
        )
    return int(given)
