"""Which gRPC status an error is, and what is told beside it."""

from __future__ import annotations

from enum import IntEnum

from hotdelta import errors
from server.http.error_responses import RETRY_AFTER_SECONDS


class StatusCode(IntEnum):
    """As gRPC has them."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


CODES: dict[type[errors.HotdeltaError], StatusCode] = {
    errors.HotdeltaError: StatusCode.INTERNAL,
    errors.ConfigurationError: StatusCode.INTERNAL,
    errors.DirectoryBusyError: StatusCode.INTERNAL,
    errors.JobRestartedError: StatusCode.INTERNAL,
    errors.SupersededError: StatusCode.INTERNAL,
    errors.ModelMismatchError: StatusCode.INTERNAL,
    errors.ChainError: StatusCode.INTERNAL,
    errors.ManifestError: StatusCode.INTERNAL,
    errors.HoleError: StatusCode.INTERNAL,
    errors.DamagedError: StatusCode.INTERNAL,
    errors.SchemaError: StatusCode.INTERNAL,
    errors.CommitError: StatusCode.INTERNAL,
    errors.UnsavedError: StatusCode.INTERNAL,
    errors.StoreError: StatusCode.INTERNAL,
    errors.ObjectMissingError: StatusCode.INTERNAL,
    errors.NameTakenError: StatusCode.INTERNAL,
    errors.ObjectTooLargeError: StatusCode.INTERNAL,
    errors.ObjectDamagedError: StatusCode.INTERNAL,
    errors.UnfitStoreError: StatusCode.INTERNAL,
    errors.UnpublishedError: StatusCode.INTERNAL,
    errors.ApplyError: StatusCode.INTERNAL,
    errors.SanityError: StatusCode.INTERNAL,
    errors.NotReadyError: StatusCode.UNAVAILABLE,
    errors.PredictionError: StatusCode.INTERNAL,
    # As TensorFlow Serving says it of a full queue: another try may do.
    errors.OverloadedError: StatusCode.UNAVAILABLE,
    errors.DeadlineError: StatusCode.DEADLINE_EXCEEDED,
    errors.RequestError: StatusCode.INVALID_ARGUMENT,
    errors.AdminOffError: StatusCode.PERMISSION_DENIED,
    errors.UnauthorizedError: StatusCode.UNAUTHENTICATED,
    # As gRPC says it of a message over its limit.
    errors.BodyTooLargeError: StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyRowsError: StatusCode.INVALID_ARGUMENT,
    errors.UnknownModelError: StatusCode.NOT_FOUND,
    # Not UNAVAILABLE, which clients try again by themselves: the caller chose whether to wait.
    errors.PositionNotReachedError: StatusCode.FAILED_PRECONDITION,
}

POSITION = "x-model-version"
MODEL_NAME = "x-model-name"

Metadata = tuple[tuple[str, str], ...]


def code_of(kind: type[errors.HotdeltaError]) -> StatusCode:
    """An error that somebody derives outside this project answers as the nearest one that is known."""
    return next(CODES[ancestor] for ancestor in kind.__mro__ if ancestor in CODES)


def told_beside(error: errors.HotdeltaError) -> Metadata:
    """Trailing metadata: what HTTP tells in headers, under the same names."""
    if isinstance(error, errors.PositionNotReachedError):
        return ((POSITION, error.live or ""),)
    if code_of(type(error)) is StatusCode.UNAVAILABLE:
        return (("retry-after", str(RETRY_AFTER_SECONDS)),)
    return ()
