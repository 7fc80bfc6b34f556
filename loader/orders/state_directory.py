"""The directory of a server's own, with what it has to know after a restart: orders, and what updates are usual."""

from __future__ import annotations

import weakref
from pathlib import Path

from hotdelta.chain import Disk
from hotdelta.directory_lock import open_locked, unlock
from hotdelta.errors import ConfigurationError
from loader.settings import LoaderSettings


class StateDirectory:
    """Made and locked: of two servers that write into one, each would forget what the other was ordered.

    The lock ends with `close`, with the object or with the process, whichever is first.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        """Without a directory in the settings there is nothing to lock. Raises ConfigurationError."""
        self._in_use = None
        if settings.state_dir is not None:
            _require_apart(settings.state_dir, settings)
            self._in_use = DirectoryInUse(settings.state_dir)

    def close(self) -> None:
        """Let the next server have it. May be called again."""
        if self._in_use is not None:
            self._in_use.close()


class DirectoryInUse:
    """One directory, made and locked, whatever is kept in it."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigurationError."""
        self._unlock = weakref.finalize(self, unlock, _make_locked(directory))
        # The end of a process that was forked is not ours.
        self._unlock.atexit = False

    def close(self) -> None:
        """Let the next server have it. May be called again."""
        self._unlock()


def _require_apart(directory: Path, settings: LoaderSettings) -> None:
    for followed in (settings.checkpoint_dir, settings.export_dir):
        if directory.resolve().is_relative_to(followed.resolve()):
            raise ConfigurationError(
                f"the state directory {directory} is in {followed}, which is only read",
                hint="give a directory of the server's own",
            )


def _make_locked(directory: Path) -> int:
    try:
        Disk().make_directory(directory)
        # On a file system without locks nobody can be kept from sharing it, and a server must start there, too.
        return open_locked(directory.resolve(), is_lock_needed=False)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"another server uses the state directory {directory}",
            hint="give each server a --state-dir of its own, or stop the other one first",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"the state directory {directory} cannot be used: {error.strerror}",
            hint="make it a directory that the server may write to",
        ) from error
