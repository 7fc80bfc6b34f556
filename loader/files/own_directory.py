"""A temporary directory that nobody else can write to, and that does not stay when its process was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from hotdelta.directory_lock import open_locked, unlock

_PREFIX = "hotdelta-verified-"
# Nobody looks for abandoned ones under this name, so that it can be locked before it gets its own.
_NEW_PREFIX = "hotdelta-new-"


class OwnDirectory:
    """A temporary directory with a lock on it, which ends with the process: it tells a used one from an abandoned one.

    (systemd's cleaner of /tmp leaves a directory with a lock alone, too.)
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1

    def path(self) -> Path:
        """Made when it is needed, and again when somebody removed it. Raises OSError."""
        if self._path is None or not self._is_ours(self._path):
            self.remove()
            made = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX))
            try:
                self._lock = open_locked(made, is_lock_needed=False)
            except OSError:
                made.rmdir()
                raise
            self._path = made.rename(made.with_name(made.name.replace(_NEW_PREFIX, _PREFIX, 1)))
        return self._path

    def _is_ours(self, path: Path) -> bool:
        """Whether it still is the directory that we locked: somebody else may have taken its name since."""
        try:
            return os.path.samestat(path.lstat(), os.fstat(self._lock))
        except OSError:
            return False

    def remove(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(self._lock)


def remove_abandoned() -> None:
    """What a server that was killed has left would else stay for ever, and a full is large.

    On a file system without locks nobody can tell an abandoned directory, so none is removed.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid():
                lock = open_locked(path)
                shutil.rmtree(path, ignore_errors=True)
                unlock(lock)
