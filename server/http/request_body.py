"""Reads the body of a request: never much more of it than is allowed, and counted while it is kept."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from hotdelta.errors import BodyTooLargeError
from server.http.connection_limits import BufferedBytes

_SMALLER = "send fewer rows, or raise --max-body-bytes"


async def read_body(
    scope: Scope,
    receive: Receive,
    max_bytes: int,
    buffered: BufferedBytes,
    *,
    hint: str = _SMALLER,
) -> bytes:
    """The whole body, but never much more of it than is allowed. Its bytes count as buffered until they are given back.

    Raises BodyTooLargeError, OverloadedError, ClientDisconnect.
    """
    declared = dict(scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes, hint)
    chunks, size, is_complete = [], 0, False
    try:
        while not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            if size + len(chunks[-1]) > max_bytes:
                raise _too_large(max_bytes, hint)
            buffered.take(len(chunks[-1]))
            size += len(chunks[-1])
            is_complete = not message.get("more_body", False)
    except BaseException:
        buffered.give_back(size)
        raise
    return b"".join(chunks)


def _too_large(max_bytes: int, hint: str) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {max_bytes} bytes", max_bytes=max_bytes, hint=hint)
