"""The errors that only a server can raise: a branch of the tree in hotdelta.errors.

RequestError
├── BodyTooLargeError         the request is larger than this server takes
└── PositionNotReachedError   the request asks for a position that is not served yet
HotdeltaError
├── OverloadedError           too many requests wait for the model
└── DeadlineError             the answer took longer than this server allows
"""

from __future__ import annotations

from hotdelta.chain import Position
from hotdelta.errors import HotdeltaError, RequestError


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
