"""Locks on directories: the kernel lets go of them when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

# What file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def open_locked(directory: Path, *, is_lock_needed: bool = True) -> int:
    """A descriptor that holds the lock until it is closed; programs that are started meanwhile do not inherit it.

    Raises BlockingIOError when somebody else has the lock, OSError when it is no directory, or a link to one, or (if
    the lock is needed) on a file system without locks.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if is_lock_needed or error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    return descriptor


def unlock(descriptor: int) -> None:
    """Also for a process that was forked meanwhile and still has the descriptor."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
