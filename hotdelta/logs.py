"""One way to log: a constant phrase plus fields, readable as text and kept apart for a JSON formatter."""

from __future__ import annotations

import json
import logging
import time
from typing import Any


def event(logger: logging.Logger, level: int, phrase: str, **fields: Any) -> None:
    """Log `phrase` with `fields`; the record carries both in `phrase` and `fields`."""
    if logger.isEnabledFor(level):
        text = " ".join([phrase, *(f"{name}={_show(value)}" for name, value in fields.items())])
        logger.log(level, "%s", text, extra={"phrase": phrase, "fields": fields}, stacklevel=2)


def counted(number: int, noun: str) -> str:
    """1 delta, 2 deltas."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
