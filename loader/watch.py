"""Says "look again" when something may have happened in a directory, and where. A hint: events lie and get lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from watchdog.events import (
    DirCreatedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch
from watchdog.observers.inotify_move_event_grouper import InotifyMoveEventGrouper

from hotdelta.chain import names
from hotdelta.chain.scan import is_manifest_name
from hotdelta.logs import event

logger = logging.getLogger(__name__)

STOP_SECONDS = 10.0
STOP_CHECK_SECONDS = 0.2

# Not "opened" and "closed without a write": our own reading would wake us for ever.
_EVENTS: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
]


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
        # It calls it an error when a watch ends while its thread is about to read.
        logging.getLogger("watchdog.observers.inotify").setLevel(logging.CRITICAL)
        # It holds every event behind the first half of a rename back for half a second, to find the other half.
        InotifyMoveEventGrouper.delay = 0.0
        self._handler = _Handler(look_again)
        self._watched: dict[Path, tuple[tuple[int, int], ObservedWatch] | None] = dict.fromkeys(directories)
        self._observer: BaseObserver = Observer(timeout=STOP_CHECK_SECONDS)
        self._observer.name = "hotdelta-watch"

    def start(self) -> None:
        self._observer.start()

    def refresh(self) -> None:
        for directory, watched in self._watched.items():
            inode = _inode(directory)
            if watched is not None and watched[0] == inode:
                continue
            if watched is not None:
                self._forget(directory, watched[1])
            if inode is not None:
                self._watch(directory, inode)

    def stop(self) -> None:
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join(STOP_SECONDS)

    def _watch(self, directory: Path, inode: tuple[int, int]) -> None:
        try:
            watch = self._observer.schedule(self._handler, str(directory), event_filter=_EVENTS)
        except OSError as error:
            # The limit of inotify watches, or gone again: the next look tries once more, and polling goes on.
            event(logger, logging.WARNING, "directory cannot be watched", path=directory, reason=error)
        else:
            self._watched[directory] = (inode, watch)

    def _forget(self, directory: Path, watch: ObservedWatch) -> None:
        self._watched[directory] = None
        try:
            self._observer.unschedule(watch)
        except (KeyError, OSError) as error:
            event(logger, logging.DEBUG, "watch was gone already", path=directory, reason=error)


class _Handler(FileSystemEventHandler):
    def __init__(self, look_again: LookAgain) -> None:
        self._look_again = look_again

    def on_any_event(self, event: FileSystemEvent) -> None:
        path = Path(os.fsdecode(event.dest_path or event.src_path))
        if is_manifest_name(path.name):
            self._look_again(path)
        elif not path.name.startswith(_NO_NEWS):
            self._look_again(None)


def _inode(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
