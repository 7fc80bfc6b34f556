"""What files say, read again when they are replaced: keys and tokens are renewed while a server runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from hotdelta.errors import ConfigurationError
from hotdelta.logs import event

logger = logging.getLogger(__name__)

Value = TypeVar("Value")
_Stamp = tuple[int, int, int]

LOOK_SECONDS = 1.0


class WatchedFiles(Generic[Value]):
    """The newest of what could be read. Belongs to one thread; a look costs it next to nothing.

    Files that cannot be read, or do not fit together yet, leave what was read before, and the log says so once.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], Value],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads them. Raises what `read` raises: ConfigurationError."""
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._stamps = self._look()
        self._value = read()
        self._next_look = clock() + LOOK_SECONDS

    def current(self) -> Value:
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_SECONDS
            stamps = self._look()
            if stamps != self._stamps:
                self._stamps = stamps
                self._read_again()
        return self._value

    def _read_again(self) -> None:
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._read()
        except ConfigurationError as error:
            event(logger, logging.ERROR, "files cannot be used, what they said before counts", reason=error)
        else:
            event(logger, logging.INFO, "files were read again", files=names)

    def _look(self) -> tuple[_Stamp | None, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
