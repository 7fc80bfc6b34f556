"""Which HTTP status an error is, and how it is written: `{"error": "..."}`, as TensorFlow Serving writes it."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hotdelta import errors

STATUS: dict[type[errors.HotdeltaError], int] = {
    errors.HotdeltaError: 500,
    errors.ConfigurationError: 500,
    errors.DirectoryBusyError: 500,
    errors.JobRestartedError: 500,
    errors.SupersededError: 500,
    errors.ModelMismatchError: 500,
    errors.ChainError: 500,
    errors.ManifestError: 500,
    errors.HoleError: 500,
    errors.DamagedError: 500,
    errors.SchemaError: 500,
    errors.CommitError: 500,
    errors.UnsavedError: 500,
    errors.StoreError: 500,
    errors.ObjectMissingError: 500,
    errors.NameTakenError: 500,
    errors.ObjectTooLargeError: 500,
    errors.ObjectDamagedError: 500,
    errors.UnfitStoreError: 500,
    errors.UnpublishedError: 500,
    errors.ApplyError: 500,
    errors.SanityError: 500,
    errors.NotReadyError: 503,
    errors.PredictionError: 500,
    errors.OverloadedError: 503,
    errors.DeadlineError: 504,
    errors.RequestError: 400,
    errors.AdminOffError: 403,
    errors.UnauthorizedError: 401,
    errors.BodyTooLargeError: 413,
    errors.TooManyRowsError: 413,
    errors.UnknownModelError: 404,
    errors.PositionNotReachedError: 409,
}

RETRY_AFTER_SECONDS = 1


def status_of(kind: type[errors.HotdeltaError]) -> int:
    """An error that somebody derives outside this project answers as the nearest one that is known."""
    return next(STATUS[ancestor] for ancestor in kind.__mro__ if ancestor in STATUS)


def error_response(error: errors.HotdeltaError) -> Response:
    status = status_of(type(error))
    document: dict[str, Any] = {"error": str(error)}
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    if isinstance(error, errors.UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, errors.PositionNotReachedError):
        document["position"] = error.live
        headers["X-Model-Version"] = error.live or ""
    return json_response(document, status=status, headers=headers)


def json_response(document: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(document), status, headers, media_type="application/json")


async def answer_hotdelta_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, errors.HotdeltaError):
        raise error
    return error_response(error)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """What Starlette refuses by itself: a path that does not exist, a method that a path does not have."""
    if not isinstance(error, HTTPException):
        raise error
    document = {"error": f"{request.method} {request.url.path}: {error.detail}. GET / lists the routes"}
    return json_response(document, status=error.status_code, headers=dict(error.headers or {}))


async def answer_unexpected(_request: Request, _error: Exception) -> Response:
    """A fault of ours: the log has the trace, the client learns only that it was not his."""
    return json_response({"error": "the server failed at this request; its log says why"}, status=500)
