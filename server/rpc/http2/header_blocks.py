"""Header blocks (HPACK): what a client says of a call, and what is said of its answer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping

from hpack import Decoder, HPACKError

from server.rpc.http2.frames import BrokenConnectionError, ErrorCode

MAX_BLOCK_BYTES = 16_384
_MAX_KEPT_BLOCKS = 64
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
# The static table has it.
_STATUS_200 = b"\x88"

Headers = Mapping[bytes, bytes]


class MalformedError(Exception):
    """Headers that no request has. Only their stream is of no use."""


class HeaderReader:
    """Of one connection: what a block means depends on those before it."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_BLOCK_BYTES)
        # Blocks that only point at what was said before: calls that are alike begin with the same bytes.
        self._known: dict[bytes, Headers] = {}

    def read(self, block: bytes) -> Headers:
        """Of several of one name the last. Raises MalformedError, or BrokenConnectionError where nothing that follows
        can be read.
        """
        found = self._known.get(block)
        if found is not None:
            return found
        try:
            listed = self._decoder.decode(block, raw=True)
        except (HPACKError, IndexError, ValueError) as error:
            raise BrokenConnectionError(ErrorCode.COMPRESSION_ERROR, f"headers: {error}") from error
        # All others may change what numbers mean.
        if not all(byte & 0x80 for byte in block):
            self._known.clear()
            return _checked(listed)
        headers = _checked(listed)
        if len(self._known) < _MAX_KEPT_BLOCKS:
            self._known[block] = headers
        return headers


def _checked(listed: Iterable[tuple[bytes, bytes]]) -> Headers:
    headers: dict[bytes, bytes] = {}
    is_pseudo_over = False
    for name, value in listed:
        if name[:1] == b":":
            if is_pseudo_over or name in headers or name not in _PSEUDO:
                raise MalformedError
        else:
            is_pseudo_over = True
            if not name or name != name.lower():
                raise MalformedError
        headers[name] = value
    return headers


def metadata_of(headers: Headers) -> dict[str, str | bytes]:
    """As callers wrote it: bytes where the name ends in -bin."""
    found: dict[str, str | bytes] = {}
    for name, value in headers.items():
        if name[:1] == b":":
            continue
        text = name.decode("latin-1")
        if text.endswith("-bin"):
            try:
                found[text] = base64.b64decode(value + b"=" * (-len(value) % 4))
            except binascii.Error:
                found[text] = b""
        else:
            found[text] = value.decode("latin-1")
    return found


def block_of(fields: Iterable[tuple[str, str]]) -> bytes:
    """Headers that nobody has to remember: the peer's table is not used, so its size does not matter."""
    return b"".join(_literal(name.encode(), value.encode("latin-1", "replace")) for name, value in fields)


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    """An integer of HPACK that begins with seven bits."""
    if size < 0x7F:
        return bytes((size,))
    written, rest = bytearray((0x7F,)), size - 0x7F
    while rest >= 0x80:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


ANSWER = _STATUS_200 + block_of([("content-type", "application/grpc")])
