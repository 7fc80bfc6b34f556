"""Bytes of files in memory of our own.

Never through a memory map: a file that somebody truncates meanwhile would end the process with SIGBUS.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# numpy aligns to 16 bytes, and TensorFlow copies what it is fed unless it lies so.
_ALIGNMENT = 64
_READ_BYTES = 64 * 1024


def open_plainly(path: Path | str, *, may_be_link: bool = False) -> int:
    """A descriptor for reading a regular file.

    Raises OSError for anything else: a symbolic link could lead out of the directory and be turned elsewhere after it
    was verified, and a pipe would let its reader wait for ever.
    """
    return open_regular(path, may_be_link=may_be_link)[0]


def open_regular(path: Path | str, *, may_be_link: bool = False) -> tuple[int, int]:
    """The same, and how large the file is."""
    follow = 0 if may_be_link else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | follow)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read_plainly(path: Path | str, max_bytes: int) -> bytes:
    """What a regular file holds, or one byte more than `max_bytes` of it. Raises OSError, as open_plainly does."""
    descriptor, expected = open_regular(path)
    try:
        content = os.read(descriptor, min(expected, _READ_BYTES, max_bytes) + 1)
        if len(content) == expected:
            # There was room for one byte more.
            return content
        pieces, size = [content], len(content)
        while size <= max_bytes and (piece := os.read(descriptor, min(_READ_BYTES, max_bytes + 1 - size))):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def aligned(size: int) -> Bytes:
    """Fresh memory that TensorFlow can take as it is."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def read_into(descriptor: int, memory: npt.NDArray[Any], offset: int) -> bool:
    """Fill the memory with what the file holds from there on; False when it ends before. Raises OSError."""
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:].data], offset + done)
        if count == 0:
            return False
        done += count
    return True
