"""The two checksums of the chain: BLAKE3 of a whole file, and TensorFlow's masked CRC-32C of one tensor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import crc32c as crc32c_library
from blake3 import blake3

CHUNK_BYTES = 4 * 1024 * 1024
_MASK_DELTA = 0xA282EAD8


def extend_crc32c(crc: int, data: bytes | memoryview) -> int:
    return crc32c_library.crc32c(data, crc)


def masked_crc32c(data: bytes | memoryview) -> int:
    return mask(crc32c_library.crc32c(data))


def mask(crc: int) -> int:
    """The form in which TensorFlow stores a CRC, so that the CRC of data that holds a CRC stays useful."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def digest_bytes(data: bytes | memoryview) -> str:
    return blake3(data).hexdigest()


def digest_file(fd: int, *, on_read: Callable[[int], None] | None = None) -> tuple[int, str]:
    """The number of bytes and the digest of what an open file holds now. Hashing releases the GIL.

    `on_read` hears the size of each piece.
    """
    hasher, size = blake3(), 0
    for chunk in read_chunks(fd, 0, os.fstat(fd).st_size):
        hasher.update(chunk)
        size += len(chunk)
        if on_read is not None:
            on_read(len(chunk))
    return size, hasher.hexdigest()


def digest_pieces(pieces: Iterable[memoryview]) -> str:
    """The digest of a file that lies in memory in pieces."""
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def read_chunks(fd: int, start: int, end: int) -> Iterator[memoryview]:
    """The bytes of [start, end) in pieces, as far as the file goes.

    One buffer is used again and again, so keep nothing of a piece.
    """
    buffer = memoryview(bytearray(min(CHUNK_BYTES, end - start)))
    offset = start
    while offset < end:
        count = os.preadv(fd, [buffer[: end - offset]], offset)
        if count == 0:
            return
        yield buffer[:count]
        offset += count
