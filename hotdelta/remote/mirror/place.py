"""Where on this machine the mirror of a store lies, and the lock that keeps a second one out of it."""

from __future__ import annotations

import os
import re
import weakref
from pathlib import Path

from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.disk import Disk
from hotdelta.directory_lock import open_locked, unlock
from hotdelta.errors import ConfigurationError

CACHE_VARIABLE = "XDG_CACHE_HOME"

_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_READABLE = 48
_DIGITS = 12


def default_root() -> Path:
    """The directory of this user for what can be fetched again."""
    given = os.environ.get(CACHE_VARIABLE)
    return (Path(given) if given else Path.home() / ".cache") / "hotdelta" / "mirrors"


def directory_for(root: Path, address: str) -> Path:
    """One for each address, with a name in which people know it again."""
    place = address.partition("?")[0]
    readable = _OTHER_CHARACTERS.sub("-", place).strip("-.")[:_MOST_READABLE]
    return root / f"{readable}-{digest_bytes(address.encode())[:_DIGITS]}"


class MirrorPlace:
    """A directory that is made, and locked until `close`, or the end of the object or of the process."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigurationError, also when another process mirrors into it."""
        self.directory = directory
        self._unlock = weakref.finalize(self, unlock, _make_locked(directory))
        # The end of a process that was forked is not ours.
        self._unlock.atexit = False

    def close(self) -> None:
        """Let the next one have it. May be called again."""
        self._unlock()


def _make_locked(directory: Path) -> int:
    try:
        Disk().make_directory(directory)
        return open_locked(directory.resolve(), is_lock_needed=False)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"another server mirrors into {directory}",
            hint="give each server on this machine a --mirror-dir of its own, or stop the other one first",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"the mirror directory {directory} cannot be used: {error.strerror}",
            hint="give --mirror-dir, a directory that the server may write to",
        ) from error
