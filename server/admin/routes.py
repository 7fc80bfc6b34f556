"""The orders of an operator: POST /model/rollback, /model/pin, /model/resume and /model/quarantine/release."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
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


def admin_router(model: ServedModel, tokens: AdminTokens) -> APIRouter:
    router = APIRouter()
    desk = _Desk(model, tokens)

    @router.post("/model/rollback", summary="Go back to an earlier position, and stay there")
    async def rollback(request: Request) -> Response:
        return await desk.carry_out(request, "rollback", _read_rollback)

    @router.post("/model/pin", summary="Stay at a position")
    async def pin(request: Request) -> Response:
        return await desk.carry_out(request, "pin", _read_pin)

    @router.post("/model/resume", summary="Follow the trainer again")
    async def resume(request: Request) -> Response:
        return await desk.carry_out(request, "resume", _read_resume)

    @router.post("/model/quarantine/release", summary="Take a quarantined update after all")
    async def release(request: Request) -> Response:
        return await desk.carry_out(request, "release", _read_release)

    return router


class _Desk:
    """Checks the token, reads the order, and logs who gave it and what came of it."""

    def __init__(self, model: ServedModel, tokens: AdminTokens) -> None:
        self._model = model
        self._tokens = tokens

    async def carry_out(
        self, request: Request, action: str, read: Callable[[dict[str, Any], ServedModel], Order]
    ) -> Response:
        name = self._require_token(request, action)
        said = "unreadable"
        try:
            order = await _read_document(request)
            said = orjson.dumps(order).decode()
            node = await asyncio.to_thread(read(order, self._model))
        except HotdeltaError as error:
            event(
                logger,
                logging.WARNING,
                "admin order failed",
                action=action,
                by=name,
                order=said,
                reason=error,
            )
            raise
        event(logger, logging.WARNING, "admin order", action=action, by=name, order=said, position=node)
        document = {
            "action": action,
            "position": str(node) if node else None,
            "by": name,
            "survives_restart": self._model.status().are_orders_kept,
        }
        return json_response(document)

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
    _require_only(document, {"position", "deltas"})
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
    _require_only(document, {"position"})
    position = _position(document) if document else None
    return lambda: model.pin(position)


def _read_resume(document: dict[str, Any], model: ServedModel) -> Order:
    _require_only(document, set())
    return model.resume


def _read_release(document: dict[str, Any], model: ServedModel) -> Order:
    _require_only(document, {"position"})
    position = _position(document)
    return lambda: model.release(position)


def _require_only(document: dict[str, Any], known: set[str]) -> None:
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
