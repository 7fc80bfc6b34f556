"""All that hotdelta uses of watchdog without a promise that the next release still has it. No other module may.

Of watchdog this is its thread that reads inotify, alone: its observer hands every event on from thread to thread to
thread, and with predictions in between that takes longer than to read a delta (0.7 ms, one time in a hundred 4 ms; this
0.06 and 1.3). tests/test_private_names.py looks each name up in the watchdog that is installed. Linux only.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    Mask,
    WatchCallback,
    WatchDescriptor,
)

__all__ = ("InotifyEvent", "InotifyReader", "WatchCallback", "WatchDescriptor")


class InotifyReader:
    """One thread that tells callbacks what happens in directories. A watch follows an inode, not a name."""

    def __init__(self, thread_name: str) -> None:
        """Raises OSError: the limit of inotify instances."""
        self._inotify = InotifyFD()
        self._inotify.name = thread_name

    def start(self) -> None:
        self._inotify.start()

    def stop(self, seconds: float) -> None:
        """Waits for the thread so long."""
        self._inotify.stop()
        self._inotify.join(seconds)

    def add(self, directory: Path, callback: WatchCallback, number: int) -> WatchDescriptor:
        """Call `callback` for files that come into a directory; `number`, with the watch, is what `remove` wants.

        Raises OSError, also where watchdog keeps a watch that is none: without the right to read the directory.
        """
        watch = self._inotify.add_callback(os.fsencode(directory), _events(), callback, CallbackId(number))
        if watch < 0:
            self.remove(watch, number)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return watch

    def remove(self, watch: WatchDescriptor, number: int) -> None:
        self._inotify.remove_callbacks([(watch, CallbackId(number))])


def _events() -> Mask:
    """Not "opened" and "closed without a write": our own reading would wake us for ever."""
    kinds = InotifyConstants
    return Mask(kinds.IN_CREATE | kinds.IN_MOVED_TO | kinds.IN_CLOSE_WRITE | kinds.IN_ONLYDIR)
