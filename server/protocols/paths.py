"""What the paths of all protocols have in common: they name a model, and describe it when they are got."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from hotdelta.errors import HotdeltaError, UnknownModelError
from server.http.error_responses import error_response, json_response
from server.models.target import Target


def target_of(match: re.Match[str]) -> Target:
    """Of a pattern with these groups; it may lack `label`."""
    found = match.groupdict()
    version = found["version"]
    return Target(found["name"], None if version is None else int(version), found.get("label"))


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
