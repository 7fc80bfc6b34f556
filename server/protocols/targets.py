"""Which model a path names, and whether it is the one that is served here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from hotdelta.errors import HotdeltaError, NotReadyError, UnknownModelError
from server.http.error_responses import error_response, json_response
from server.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a path names, and the version or label of it, if it names one."""

    name: str
    version: int | None = None
    label: str | None = None

    @classmethod
    def of(cls, match: re.Match[str]) -> Target:
        """Of a pattern with these groups; it may lack `label`."""
        found = match.groupdict()
        version = found["version"]
        return cls(found["name"], None if version is None else int(version), found.get("label"))

    def require_version(self, served: int) -> None:
        """Of an answer, too: another export may have taken over meanwhile. Raises UnknownModelError."""
        if self.version not in (None, served):
            raise UnknownModelError(
                f"there is no version {self.version} of model {self.name!r}",
                hint=f"version {served} is served",
            )


class ServedTarget:
    """The one model that is served here. `model_name`: None: it has the name that its export has."""

    def __init__(self, model: ServedModel, *, model_name: str | None) -> None:
        self._model = model
        self._model_name = model_name

    @property
    def name(self) -> str | None:
        """None while nothing is served that has one."""
        return self._model_name or self._model.status().model_name

    def require(self, target: Target) -> int:
        """The version that is served. Raises UnknownModelError, or NotReadyError while nothing is."""
        status = self._model.status()
        name, version = self._model_name or status.model_name, status.export_version
        if name is not None and target.name != name:
            raise UnknownModelError(
                f"there is no model {target.name!r}", hint=f"the one that is served here is {name!r}"
            )
        if version is None:
            raise NotReadyError("no model is served yet", hint="GET /model/version says what it waits for")
        if target.label is not None:
            raise UnknownModelError(f"there is no label {target.label!r}", hint="this server has none")
        target.require_version(version)
        return version


def tell(path: str, document: Callable[[str], Any], *, is_call: bool) -> Response:
    """What a GET is answered: the document of the path. A path that is a call is asked by POST alone."""
    if is_call:
        raise HTTPException(405, headers={"Allow": "POST"})
    try:
        return json_response(document(path))
    except HotdeltaError as error:
        return error_response(error)


def unknown_path(method: str, path: str) -> UnknownModelError:
    return UnknownModelError(f"{method} {path}: Not Found", hint="GET / lists the routes")
