"""The paths of TensorFlow Serving's REST API."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
from server.predict.request import PredictRequest
from server.predict.route import answer_of
from server.protocols.paths import target_of, tell, unknown_path
from server.protocols.tensorflow_serving.answer import write_answer, write_classes, write_values
from server.protocols.tensorflow_serving.documents import metadata_document, status_document
from server.protocols.tensorflow_serving.examples import (
    classified,
    regressed,
    signature_that_classifies,
    signature_that_regresses,
)
from server.protocols.tensorflow_serving.request import read_examples, read_request
from server.served_model import Array

PROTOCOL = "tensorflow_serving"
MODELS = "/v1/models/"
SERVING_ROUTES = {
    "POST /v1/models/{model}:predict": "the same as TensorFlow Serving answers it",
    "POST /v1/models/{model}/versions/{version}:predict": "only from this version of the export",
    "POST /v1/models/{model}:classify": "classes and scores of examples, where a signature takes examples",
    "POST /v1/models/{model}/versions/{version}:classify": "only from this version of the export",
    "POST /v1/models/{model}:regress": "a number for each example, where a signature takes examples",
    "POST /v1/models/{model}/versions/{version}:regress": "only from this version of the export",
    "GET /v1/models": "the names of the models and labels that can be asked",
    "GET /v1/models/{model}": "its version and state, as TensorFlow Serving tells them",
    "GET /v1/models/{model}/versions/{version}": "the same of this version",
    "GET /v1/models/{model}/metadata": "its signatures, as TensorFlow Serving tells them",
    "GET /v1/models/{model}/versions/{version}/metadata": "the same of this version",
}

_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_CALL = re.compile(rf"{_MODEL}:(?P<method>[a-z]+)", re.IGNORECASE)
_DOCUMENT = re.compile(rf"{_MODEL}(?P<metadata>/metadata)?", re.IGNORECASE)


def is_serving_call(path: str) -> bool:
    """Whether something is asked of a model, whatever and of whichever."""
    return path[: len(MODELS)].lower() == MODELS and ":" in path


def target_in(path: str) -> Target | None:
    """The model that is asked by one of our methods; None when the path is none of that."""
    match = _CALL.fullmatch(path)
    return None if match is None or match["method"].lower() not in _METHODS else target_of(match)


class ServingCalls:
    """POST .../NAME:predict, :classify and :regress. `find`: the model of a name. Belongs to the event loop."""

    def __init__(self, find: Callable[[Target], Plane]) -> None:
        self._find = find

    async def respond(self, scope: Scope, body: bytes) -> Response:
        match = _CALL.fullmatch(scope["path"])
        if match is None:
            raise unknown_path(scope["method"], scope["path"])
        method = match["method"].lower()
        if method not in _METHODS:
            raise RequestError(f":{method} is no method of TensorFlow Serving", hint="ask :predict")
        target = target_of(match)
        plane = self._find(target)
        asked = _METHODS[method](body, plane)
        outputs, version = await plane.predict(asked, protocol=PROTOCOL)
        target.require_version(version.export_version)
        return answer_of(_write(method, asked, outputs), version, plane.told_name)


class TensorFlowServing:
    """The paths of the protocol, of all models. Belongs to the event loop."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.respond = ServingCalls(models.plane).respond

    def routes(self, call: ASGIApp) -> list[Route]:
        """What FastAPI is to know: which methods the paths have, and what is no call."""
        return [
            Route(f"{MODELS}{{rest:path}}:{{method}}", call, methods=["POST"]),
            Route(MODELS.rstrip("/"), self.list_names, methods=["GET"]),
            Route(f"{MODELS}{{rest:path}}", self.describe, methods=["GET"]),
        ]

    async def list_names(self, _request: Request) -> Response:
        """GET /v1/models, as KServe has it: whatever can stand in a path, labels too."""
        names = [entry.name for entry in self._models.entries() if entry.name is not None]
        return json_response({"models": [*names, *self._models.labels]})

    async def describe(self, request: Request) -> Response:
        """GET .../NAME, and .../NAME/metadata."""
        path = request.scope["path"]
        return tell(path, self._document, is_call=is_serving_call(path))

    def _document(self, path: str) -> dict[str, Any]:
        match = _DOCUMENT.fullmatch(path)
        if match is None:
            raise unknown_path("GET", path)
        entry, version = self._models.find(target_of(match))
        if match["metadata"] is None:
            return status_document(version)
        return metadata_document(match["name"], version, entry.plane.signatures)


def _read_predict(body: bytes, plane: Plane) -> PredictRequest:
    return read_request(body, plane.signatures, max_wait_ms=plane.max_wait_ms)


def _read_classify(body: bytes, plane: Plane) -> PredictRequest:
    return read_examples(body, plane.signatures, signature_that_classifies, max_wait_ms=plane.max_wait_ms)


def _read_regress(body: bytes, plane: Plane) -> PredictRequest:
    return read_examples(body, plane.signatures, signature_that_regresses, max_wait_ms=plane.max_wait_ms)


_METHODS: dict[str, Callable[[bytes, Plane], PredictRequest]] = {
    "predict": _read_predict,
    "classify": _read_classify,
    "regress": _read_regress,
}


def _write(method: str, asked: PredictRequest, outputs: Mapping[str, Array]) -> bytes:
    if method == "classify":
        return write_classes(classified(outputs, examples=asked.rows or 0))
    if method == "regress":
        return write_values(regressed(outputs, examples=asked.rows or 0))
    return write_answer(outputs, rows=asked.rows)
