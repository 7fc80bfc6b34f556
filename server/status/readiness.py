"""Whether a server, or a model, can be asked: what probes learn that have no token, and no more than that."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from hotdelta.errors import NotReadyError, UnknownModelError
from server.http.error_responses import error_response, json_response

# As the description of the routes has them.
READY_PATHS = frozenset(
    {
        "/readyz",
        "/models/{model}/ready",
        "/v2/health/ready",
        "/v2/models/{model}/ready",
        "/v2/models/{model}/versions/{version}/ready",
    }
)
_READY = re.compile(r"/readyz|/models/[^/]+/ready|/v2/health/ready|/v2/models/[^/]+(/versions/\d+)?/ready")


def is_readiness(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and _READY.fullmatch(scope["path"]) is not None


async def tell_stranger(answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Yes, no, or no such model. Who else is here, where things lie and what went wrong stays in `answer`."""
    status = 500

    async def note(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    await answer(scope, receive, note)
    if status == 200:
        key = "ready" if scope["path"].startswith("/v2/") else "is_ready"
        told = json_response({key: True})
    elif status == 404:
        told = error_response(UnknownModelError("there is no such model"))
    else:
        told = error_response(NotReadyError("it is not ready", hint="who sends a token is told why"))
    await told(scope, receive, send)
