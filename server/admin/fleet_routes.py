"""The orders that change which models are served, and what clients get by a label."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from hotdelta.errors import ConfigurationError, RequestError
from server.admin.routes import Desk, require_only
from server.admin.tokens import AdminTokens
from server.models.fleet import Change, Fleet

FLEET_ROUTES = {
    "POST /models/reload": "read the file of --config again, as SIGHUP does; needs a token",
    "POST /models/{model}/load": 'serve one more: {"export_dir": ..., "checkpoint_dir": ...}; needs a token',
    "POST /models/{model}/unload": "serve it no longer; needs a token",
    "POST /labels/{label}": 'clients get {"model": NAME} by this label from now on; needs a token',
}


def fleet_router(fleet: Fleet, tokens: AdminTokens) -> APIRouter:
    router = APIRouter()
    desk = Desk(tokens)

    @router.post("/models/reload", summary="Read the file of the models again")
    async def reload(request: Request) -> Response:
        async def carry_out(order: dict[str, Any]) -> dict[str, Any]:
            require_only(order, set())
            return {**await _made(fleet.reload()), "survives_restart": True}

        return await desk.carry_out(request, "reload", carry_out)

    @router.post("/models/{model}/load", summary="Serve one more model")
    async def load(request: Request, model: str) -> Response:
        async def carry_out(order: dict[str, Any]) -> dict[str, Any]:
            return {**await _made(fleet.load(model, order)), "survives_restart": False}

        return await desk.carry_out(request, "load", carry_out, model=model)

    @router.post("/models/{model}/unload", summary="Serve a model no longer")
    async def unload(request: Request, model: str) -> Response:
        async def carry_out(order: dict[str, Any]) -> dict[str, Any]:
            require_only(order, set())
            return {**await _made(fleet.unload(model)), "survives_restart": False}

        return await desk.carry_out(request, "unload", carry_out, model=model)

    @router.post("/labels/{label}", summary="Move a label to another model")
    async def move(request: Request, label: str) -> Response:
        async def carry_out(order: dict[str, Any]) -> dict[str, Any]:
            require_only(order, {"model"})
            name = order.get("model")
            if not isinstance(name, str):
                raise RequestError("model is missing, or no text", hint='give {"model": "NAME"}')
            is_kept = await fleet.move_label(label, name)
            return {"model": name, "before": fleet.before(label), "survives_restart": is_kept}

        return await desk.carry_out(request, "label", carry_out, label=label)

    return router


async def _made(changing: Awaitable[Change]) -> dict[str, Any]:
    """What is wrong with a configuration is the fault of whoever ordered it. Raises RequestError."""
    try:
        change = await changing
    except ConfigurationError as error:
        raise RequestError(error.message, hint=error.hint) from error
    return {"added": list(change.added), "removed": list(change.removed)}
