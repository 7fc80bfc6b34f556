"""Standard error as a terminal: whether it wants colour, and a bar that says how far something long is.

rich is imported only when a bar is shown. What is short shows none, and where there is no terminal nobody sees one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from hotdelta.logs import telling_progress

if TYPE_CHECKING:
    from rich.progress import Progress

# What takes less shows no bar, and a bar is drawn no more often.
PATIENCE_SECONDS = 0.5
_REDRAWN_SECONDS = 0.1
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"


def has_style(stream: IO[str] | None) -> bool:
    """Whether a stream is a terminal that wants colour: NO_COLOR and TERM=dumb say that it does not."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and stream is not None and stream.isatty()


class Bar:
    """One work after the other, each with a bar of its own when it takes long. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._what = ""
        self._done = 0
        self._since = self._drawn = 0.0
        self._progress: Progress | None = None

    def tell(self, what: str, done: int, of: int) -> None:
        """Call it as often as you like. What has the word "bytes" in it counts bytes, all else may count from 0."""
        now = self._clock()
        if what != self._what or done < self._done:
            self.stop()
            self._what, self._since = what, now
        self._done = done
        if self._progress is None and now - self._since > PATIENCE_SECONDS:
            self._progress = _start(what, of)
        if self._progress is not None and now - self._drawn > _REDRAWN_SECONDS:
            self._drawn = now
            self._progress.update(self._progress.task_ids[0], completed=done, refresh=True)
        if done >= (of if _counts_bytes(what) else of - 1):
            self.stop()

    def stop(self) -> None:
        """The bar is gone then, as if it had never been there."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


@contextmanager
def progress_bars() -> Iterator[None]:
    """What is told to a ProgressLog meanwhile is shown as bars, if standard error is a terminal, and not logged."""
    if not has_style(sys.stderr):
        yield
        return
    bar = Bar()
    try:
        with telling_progress(bar.tell):
            yield
    finally:
        bar.stop()


def leave_terminal() -> None:
    """For a process that ends at once: the cursor, which a bar hides, is back. May be called by a signal handler."""
    if has_style(sys.stderr):
        with suppress(OSError):
            os.write(2, _SHOW_CURSOR)


def _start(what: str, of: int) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    counted = DownloadColumn() if _counts_bytes(what) else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counted, TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    progress.add_task(what.replace(" bytes of", ""), total=of)
    progress.start()
    return progress


def _counts_bytes(what: str) -> bool:
    return "bytes" in what.split()
