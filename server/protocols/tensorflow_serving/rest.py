"""The paths of TensorFlow Serving's REST API, for the one model that is served here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from hotdelta.errors import HotdeltaError, NotReadyError, RequestError, UnknownModelError
from server.http.error_responses import error_response, json_response
from server.predict.data_plane import DataPlane
from server.predict.route import answer_of
from server.protocols.tensorflow_serving.answer import write_answer
from server.protocols.tensorflow_serving.documents import metadata_document, status_document
from server.protocols.tensorflow_serving.request import read_request

MODELS = "/v1/models/"
SERVING_ROUTES = {
    "POST /v1/models/{model}:predict": "the same as TensorFlow Serving answers it",
    "POST /v1/models/{model}/versions/{version}:predict": "only from this version of the export",
    "GET /v1/models/{model}": "its version and state, as TensorFlow Serving tells them",
    "GET /v1/models/{model}/versions/{version}": "the same of this version",
    "GET /v1/models/{model}/metadata": "its signatures, as TensorFlow Serving tells them",
    "GET /v1/models/{model}/versions/{version}/metadata": "the same of this version",
}

_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_CALL = re.compile(rf"{_MODEL}:(?P<method>[a-z]+)", re.IGNORECASE)
_DOCUMENT = re.compile(rf"{_MODEL}(?P<metadata>/metadata)?", re.IGNORECASE)
_NOT_HERE = ("classify", "regress")


@dataclass(frozen=True, slots=True)
class _Target:
    """The model that a path names, and the version, if it names one."""

    name: str
    version: int | None
    label: str | None

    @classmethod
    def of(cls, match: re.Match[str]) -> _Target:
        version = match["version"]
        return cls(match["name"], None if version is None else int(version), match["label"])


class TensorFlowServing:
    """Translates paths and JSON. Belongs to the event loop. `model_name`: None: the one that the export has."""

    def __init__(self, plane: DataPlane, *, model_name: str | None) -> None:
        self._plane = plane
        self._model_name = model_name

    async def respond(self, scope: Scope, body: bytes) -> Response:
        """POST .../NAME:predict."""
        match = _CALL.fullmatch(scope["path"])
        if match is None:
            raise _unknown_path(scope["method"], scope["path"])
        if match["method"].lower() != "predict":
            raise _other_method(match["method"].lower())
        target = _Target.of(match)
        self._require_served(target)
        asked = read_request(body, self._plane.signatures, max_wait_ms=self._plane.max_wait_ms)
        outputs, version = await self._plane.predict(asked)
        _require_version(target, version.export_version)
        return answer_of(write_answer(outputs, rows=asked.rows), version)

    async def describe(self, request: Request) -> Response:
        """GET .../NAME, and .../NAME/metadata."""
        try:
            return json_response(self._document(request.scope["path"]))
        except HotdeltaError as error:
            return error_response(error)

    def _document(self, path: str) -> dict[str, Any]:
        match = _DOCUMENT.fullmatch(path)
        if match is None:
            raise _unknown_path("GET", path)
        version = self._require_served(_Target.of(match))
        if match["metadata"] is None:
            return status_document(version)
        return metadata_document(match["name"], version, self._plane.signatures)

    def _require_served(self, target: _Target) -> int:
        """The version that is served. Raises UnknownModelError, or NotReadyError while nothing is."""
        status = self._plane.model.status()
        name, version = self._model_name or status.model_name, status.export_version
        if name is not None and target.name != name:
            raise UnknownModelError(
                f"there is no model {target.name!r}", hint=f"the one that is served here is {name!r}"
            )
        if version is None:
            raise NotReadyError("no model is served yet", hint="GET /model/version says what it waits for")
        if target.label is not None:
            raise UnknownModelError(f"there is no label {target.label!r}", hint="this server has none")
        _require_version(target, version)
        return version


def _require_version(target: _Target, served: int) -> None:
    """Of the answer, too: another export may have taken over meanwhile."""
    if target.version not in (None, served):
        raise UnknownModelError(
            f"there is no version {target.version} of model {target.name!r}",
            hint=f"version {served} is served",
        )


def _unknown_path(method: str, path: str) -> UnknownModelError:
    return UnknownModelError(f"{method} {path}: Not Found", hint="GET / lists the routes")


def _other_method(method: str) -> RequestError:
    known = "is not answered here" if method in _NOT_HERE else "is no method of TensorFlow Serving"
    return RequestError(f":{method} {known}", hint="ask :predict, with the inputs of the signature")
