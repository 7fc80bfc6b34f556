"""One way to log: a constant phrase plus fields, readable as text and kept apart for a JSON formatter."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger(__name__)

# How long a failure that goes on is not said again: at first, and at most.
FIRST_SILENT_SECONDS = 10.0
MOST_SILENT_SECONDS = 600.0
# How often something long says how far it is.
PROGRESS_SECONDS = 5.0


# What every event of a thread is about.
_about = threading.local()


def about(**fields: Any) -> None:
    """From now on every event of this thread has these fields, too, before its own; with none it has its own alone."""
    _about.fields = fields


def event(logger: logging.Logger, level: int, phrase: str, **fields: Any) -> None:
    """Log `phrase` with `fields`; the record carries both in `phrase` and `fields`."""
    if logger.isEnabledFor(level):
        fields = {**getattr(_about, "fields", {}), **fields}
        text = " ".join([phrase, *(f"{name}={_show(value)}" for name, value in fields.items())])
        logger.log(level, "%s", text, extra={"phrase": phrase, "fields": fields}, stacklevel=2)


class FailureLog:
    """Says that something fails at once, then at growing intervals with a count, and once when it works again.

    Belongs to one thread.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._count = 0
        self._since = self._quiet_until = self._silent_seconds = 0.0

    def failed(self, phrase: str, **fields: Any) -> None:
        now = self._clock()
        self._count += 1
        if self._count == 1:
            self._since, self._silent_seconds = now, FIRST_SILENT_SECONDS
            event(self._logger, logging.ERROR, phrase, **fields)
        elif now < self._quiet_until:
            return
        else:
            self._silent_seconds = min(2 * self._silent_seconds, MOST_SILENT_SECONDS)
            event(
                self._logger, logging.ERROR, phrase, **fields, failures=self._count, seconds=now - self._since
            )
        self._quiet_until = now + self._silent_seconds

    def worked(self, phrase: str) -> None:
        if self._count:
            seconds = self._clock() - self._since
            event(self._logger, logging.INFO, phrase, failures=self._count, seconds=seconds)
            self._count = 0


# What was done of what, and how much there is of it.
ProgressListener = Callable[[str, int, int], None]
_listener: ContextVar[ProgressListener | None] = ContextVar("progress listener", default=None)


@contextmanager
def telling_progress(listener: ProgressListener) -> Iterator[None]:
    """What this thread tells of its progress meanwhile goes to the listener, at every step, and into no log."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class ProgressLog:
    """Says how far something long is, every few seconds, with its fields; what is short says nothing.

    Counts whatever the caller does; a phrase that counts bytes says so. Belongs to one thread.
    """

    def __init__(
        self, phrase: str, *, of: int, clock: Callable[[], float] = time.monotonic, **fields: Any
    ) -> None:
        self._phrase = phrase
        self._of = of
        self._fields = fields
        self._clock = clock
        self._next = clock() + PROGRESS_SECONDS

    def tell(self, done: int) -> None:
        """Call it as often as you like."""
        if (listener := _listener.get()) is not None:
            listener(self._phrase, done, self._of)
            return
        if (now := self._clock()) >= self._next:
            self._next = now + PROGRESS_SECONDS
            event(logger, logging.INFO, self._phrase, **self._fields, done=done, of=self._of)


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """While a SavedModel is written.

    TensorFlow tells of each variable whose name is no Python name, of functions that we must use, and where it puts
    files that are moved at once.
    """
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    levels = [noisy.level for noisy in loggers]
    for noisy in loggers:
        noisy.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for noisy, level in zip(loggers, levels, strict=True):
            noisy.setLevel(level)


def counted(number: int, noun: str) -> str:
    """1 delta, 2 deltas."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_table(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Columns as wide as they need to be; the first `left` of them to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    text = str(value)
    # A name with a line break in it must not look like a line of its own.
    return json.dumps(text) if " " in text or not text or not text.isprintable() else text


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": getattr(record, "phrase", None) or record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """Date, time, level and text on one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")
