"""The orders of an operator to a model: rollback, pin, resume, release."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hotdelta.chain import Node, Position
from hotdelta.errors import HotdeltaError, ManifestError, RequestError
from hotdelta.logs import event
from server.admin.tokens import AdminTokens
from server.http.connection_limits import BufferedBytes
from server.http.error_responses import json_response
from server.http.request_body import read_body
from server.models.entry import Entry
from server.models.models import Models
from server.served_model import ServedModel

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 4096
ADMIN_ROUTES = {
    "POST /model/rollback": 'go back and stay: {"position": "3.17"} or {"deltas": 1}; needs a token',
    "POST /model/pin": 'stay at {"position": "3.17"}, or at what is served; needs a token',
    "POST /model/resume": "follow again, also over what was rolled back; needs a token",
    "POST /model/quarantine/release": 'take {"position": "3.17"} whatever its values are; needs a token',
}

ADMIN_PATHS = frozenset(route.split()[1] for route in ADMIN_ROUTES)

Order = Callable[[], Node | None]


def admin_router(models: Models, tokens: AdminTokens) -> APIRouter:
    """Each order for the default model, and for one by its name or a label."""
    router = APIRouter()
    desk = Desk(tokens)
    for verb, read, summary in (
        ("rollback", _read_rollback, "Go back to an earlier position, and stay there"),
        ("pin", _read_pin, "Stay at a position"),
        ("resume", _read_resume, "Follow the trainer again"),
        ("quarantine/release", _read_release, "Take a quarantined update after all"),
    ):
        give = _Giving(desk, models, verb.rpartition("/")[2], read)
        router.add_api_route(f"/model/{verb}", give.to_default, methods=["POST"], summary=summary)
        router.add_api_route(f"/models/{{model}}/{verb}", give.to_named, methods=["POST"], summary=summary)
    return router


class _Giving:
    """One kind of order to a model."""

    def __init__(
        self, desk: Desk, models: Models, action: str, read: Callable[[dict[str, Any], ServedModel], Order]
    ) -> None:
        self._desk = desk
        self._models = models
        self._action = action
        self._read = read

    async def to_default(self, request: Request) -> Response:
        return await self._give(request, self._models.default)

    async def to_named(self, request: Request, model: str) -> Response:
        return await self._give(request, lambda: self._models.entry(model), model=model)

    async def _give(self, request: Request, find: Callable[[], Entry], **about: str) -> Response:
        async def carry_out(order: dict[str, Any]) -> dict[str, Any]:
            model = find().model
            node = await asyncio.to_thread(self._read(order, model))
            position = str(node) if node else None
            return {"position": position, "survives_restart": model.status().are_orders_kept}

        return await self._desk.carry_out(request, self._action, carry_out, **about)


class Desk:
    """Checks the token, reads the order, and logs who gave it and what came of it."""

    def __init__(self, tokens: AdminTokens) -> None:
        self._tokens = tokens

    async def carry_out(
        self,
        request: Request,
        action: str,
        give: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        **about: str,
    ) -> Response:
        """`give` has the order, and tells what came of it and whether it survives a restart; `about`: of what it is."""
        name = self._require_token(request, action)
        said = "unreadable"
        try:
            order = await _read_document(request)
            said = orjson.dumps(order).decode()
            outcome = await give(order)
        except HotdeltaError as error:
            event(
                logger,
                logging.WARNING,
                "admin order failed",
                action=action,
                **about,
                by=name,
                order=said,
                reason=error,
            )
            raise
        survives = {"survives_restart": outcome.pop("survives_restart")}
        event(logger, logging.WARNING, "admin order", action=action, **about, by=name, order=said, **outcome)
        return json_response({"action": action, **about, **outcome, "by": name, **survives})

    def _require_token(self, request: Request, action: str) -> str:
        try:
            return self._tokens.name_of(request.headers.get("authorization"))
        except RequestError as error:
            client = request.client.host if request.client else "unknown"
            event(
                logger, logging.WARNING, "admin request refused", action=action, client=client, reason=error
            )
            raise


async def _read_document(request: Request) -> dict[str, Any]:
    hint = "an order is a short JSON object"
    try:
        # Counted by itself: an order is taken however much predictions have buffered.
        alone = BufferedBytes(MAX_BODY_BYTES)
        return _parse(await read_body(request.scope, request.receive, MAX_BODY_BYTES, alone, hint=hint))
    except ClientDisconnect as error:
        raise RequestError("the client hung up in the middle of its order") from error


def _parse(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the body is not an object")
    return document


def _read_rollback(document: dict[str, Any], model: ServedModel) -> Order:
    require_only(document, {"position", "deltas"})
    if len(document) != 1:
        raise RequestError("say how far to go back", hint='give {"position": "3.17"} or {"deltas": 1}')
    if "position" in document:
        position = _position(document)
        return lambda: model.rollback(position)
    deltas = document["deltas"]
    if type(deltas) is not int or not 0 < deltas < 2**31:
        raise RequestError("deltas is not a whole number from 1")
    return lambda: model.rollback_deltas(deltas)


def _read_pin(document: dict[str, Any], model: ServedModel) -> Order:
    require_only(document, {"position"})
    position = _position(document) if document else None
    return lambda: model.pin(position)


def _read_resume(document: dict[str, Any], model: ServedModel) -> Order:
    require_only(document, set())
    return model.resume


def _read_release(document: dict[str, Any], model: ServedModel) -> Order:
    require_only(document, {"position"})
    position = _position(document)
    return lambda: model.release(position)


def require_only(document: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(document.keys() - known)
    if unknown:
        raise RequestError(
            f"{unknown[0]!r} is unknown", hint=f"known: {', '.join(sorted(known)) or 'nothing'}"
        )


def _position(document: dict[str, Any]) -> Position:
    text = document.get("position")
    if not isinstance(text, str) or len(text) > 32:
        raise RequestError("position is missing, or no text", hint='give it as "3.17"')
    try:
        return Position.parse(text)
    except ManifestError as error:
        raise RequestError(error.message, hint=error.hint) from error
