"""The errors that only a server can raise: a branch of the tree in hotdelta.errors.

RequestError
├── AdminOffError             this server has no tokens, so nobody may give orders
├── UnauthorizedError         the request carries no token, or none that is known
├── BodyTooLargeError         the request is larger than this server takes
└── PositionNotReachedError   the request asks for a position that is not served yet
HotdeltaError
├── OverloadedError           too many requests wait for the model
└── DeadlineError             the answer took longer than this server allows
"""

from __future__ import annotations

from hotdelta.chain import Position
from hotdelta.errors import HotdeltaError, RequestError


class AdminOffError(RequestError):
    """This server has no tokens, so nobody may give orders."""

    def __init__(self) -> None:
        super().__init__("the admin routes are off", hint="start the server with --admin-token-file")


class UnauthorizedError(RequestError):
    """The request carries no token, or none that is known."""

    def __init__(self) -> None:
        super().__init__("this needs a token that is known here", hint="send Authorization: Bearer TOKEN")


class BodyTooLargeError(RequestError):
    """The request is larger than this server takes."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"the body is larger than {max_bytes} bytes", hint="send fewer rows, or raise --max-body-bytes"
        )
        self.max_bytes = max_bytes


class PositionNotReachedError(RequestError):
    """The request asks for a position that is not served yet."""

    retryable = True

    def __init__(self, wanted: Position, live: Position | None) -> None:
        super().__init__(
            f"position {wanted} is not served yet, {live if live else 'no position'} is",
            hint="try again later, or give wait_ms",
        )
        self.wanted = wanted
        self.live = live


class OverloadedError(HotdeltaError):
    """Too many requests wait for the model."""

    retryable = True


class DeadlineError(HotdeltaError):
    """The answer took longer than this server allows."""

    retryable = True
