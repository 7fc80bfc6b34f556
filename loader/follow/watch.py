"""Says "look again" when something may have happened in a directory, and where. A hint: events lie and get lost."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from hotdelta.chain.format import names
from hotdelta.chain.history.scan import is_manifest_name
from hotdelta.logs import event
from loader.settings import LoaderSettings

if sys.platform == "linux":
    from loader.follow.watchdog_internals import InotifyEvent, InotifyReader, WatchDescriptor

logger = logging.getLogger(__name__)

# Elsewhere directories are polled.
HAS_EVENTS = sys.platform == "linux"
STOP_SECONDS = 10.0

# Files of bundles come before their manifest, and a look at them would be in its way. Late ones are polled.
_NO_NEWS = (names.TEMPORARY_PREFIX, names.STATE_FILE, names.FULL_STEM, names.DELTA_STEM)

# Called with a new manifest, or with None when it may be anything.
LookAgain = Callable[[Path | None], None]


class Watch(Protocol):
    """Calls back when a look may be worth it. `refresh` is called before every look."""

    def start(self) -> None: ...

    def refresh(self) -> None: ...

    def stop(self) -> None: ...


class NoWatch:
    """Polling alone, where file-system events do not arrive."""

    def start(self) -> None:
        return

    def refresh(self) -> None:
        return

    def stop(self) -> None:
        return


class DirectoryWatch:
    """Watches directories that may not exist yet, may vanish, and may be replaced. For one thread.

    A watch follows an inode, not a name, so `refresh` sets a new one when a directory has become another.
    """

    def __init__(self, directories: Iterable[Path], look_again: LookAgain) -> None:
        self._hints = [_Hint(directory, look_again) for directory in directories]
        # By the number of the hint: two may be for the same directory.
        self._watched: dict[int, tuple[tuple[int, int], WatchDescriptor]] = {}
        self._told: set[int] = set()
        self._inotify: InotifyReader | None = None

    def start(self) -> None:
        try:
            self._inotify = InotifyReader("hotdelta-watch")
        except OSError as error:
            # The limit of inotify instances: polling goes on.
            event(logger, logging.WARNING, "directories cannot be watched", reason=error)
            return
        self._inotify.start()

    def refresh(self) -> None:
        if self._inotify is None:
            return
        for number, hint in enumerate(self._hints):
            inode, watched = _inode(hint.directory), self._watched.get(number)
            if watched is not None and watched[0] == inode and watched[1] != hint.ended:
                continue
            if watched is not None:
                del self._watched[number]
                self._inotify.remove(watched[1], number)
            if inode is not None:
                self._watch(self._inotify, number, inode)

    def stop(self) -> None:
        if self._inotify is not None:
            self._inotify.stop(STOP_SECONDS)

    def _watch(self, inotify: InotifyReader, number: int, inode: tuple[int, int]) -> None:
        hint = self._hints[number]
        try:
            watch = inotify.add(hint.directory, hint, number)
        except OSError as error:
            # No right to read it, the limit of inotify watches, or gone again. Every look tries, and polling goes on.
            if number not in self._told:
                self._told.add(number)
                phrase = "directory cannot be watched"
                event(logger, logging.WARNING, phrase, path=hint.directory, reason=error)
        else:
            self._watched[number] = (inode, watch)
            self._told.discard(number)


def make_watch(settings: LoaderSettings, look_again: LookAgain) -> Watch:
    if settings.is_polling_only or not HAS_EVENTS:
        return NoWatch()
    run_dir = settings.checkpoint_dir
    return DirectoryWatch((run_dir, run_dir / names.DELTA_DIRECTORY, settings.export_dir), look_again)


class _Hint:
    """What watchdog calls, in a thread of its own, for the events of one directory."""

    def __init__(self, directory: Path, look_again: LookAgain) -> None:
        self.directory = directory
        self._look_again = look_again
        self.ended: WatchDescriptor | None = None

    def on_event(self, event: InotifyEvent) -> None:
        name = os.fsdecode(event.name)
        if is_manifest_name(name):
            self._look_again(self.directory / name)
        elif not name.startswith(_NO_NEWS):
            self._look_again(None)

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """The directory is gone. Another may get its inode number, so that alone does not tell."""
        self.ended = wd
        self._look_again(None)

    def on_queue_overflow(self) -> None:
        self._look_again(None)


def _inode(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
