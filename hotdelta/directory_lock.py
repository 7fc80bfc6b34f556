"""Directories that one process has to itself: the kernel lets go of the lock when it ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

from hotdelta.errors import ConfigurationError

# What file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Wording:
    """How somebody is told that he cannot have a directory, and what he can do."""

    name: str
    taken: str
    taken_hint: str
    unusable_hint: str


STATE_WORDING = Wording(
    name="state",
    taken="another server uses the state directory",
    taken_hint="give each server a --state-dir of its own, or stop the other one first",
    unusable_hint="make it a directory that the server may write to",
)


class LockedDirectory:
    """Made, and locked until `close`, or the end of the object or of the process, whichever is first."""

    def __init__(self, directory: Path, wording: Wording) -> None:
        """Raises ConfigurationError."""
        self.path = directory
        self._unlock = weakref.finalize(self, unlock, _make_locked(directory, wording))
        # The end of a process that was forked is not ours.
        self._unlock.atexit = False

    def close(self) -> None:
        """Let the next one have it. May be called again."""
        self._unlock()


def _make_locked(directory: Path, wording: Wording) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # On a file system without locks nobody can be kept from sharing it, and a server must start there, too.
        return open_locked(directory.resolve(), is_lock_needed=False)
    except BlockingIOError as error:
        raise ConfigurationError(f"{wording.taken} {directory}", hint=wording.taken_hint) from error
    except OSError as error:
        problem = f"the {wording.name} directory {directory} cannot be used: {error.strerror}"
        raise ConfigurationError(problem, hint=wording.unusable_hint) from error


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
