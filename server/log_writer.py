"""The log, written by a thread of its own: whoever does not read it, or a slow disk, holds nobody up.

Lines that wait are bounded. What finds no room, or cannot be written, is lost, and counted in a line of its own.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import sys
import threading

from hotdelta.logs import JsonFormatter, TextFormatter

MAX_LINES = 4096
_FLUSH_SECONDS = 1.0


class LogWriter(logging.Handler):
    """Formats where something is logged, and writes in its own thread, in the same order.

    `flush` waits a second at most. Python calls it when it ends; who ends without Python calls logging.shutdown.
    """

    def __init__(self, descriptor: int, *, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._max_lines = max_lines
        # One that a signal's handler may use, too, wherever it came in between.
        self._waiting: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        # Each of these is changed by one side only: by those who log, under the lock of the handler; by the thread.
        self._refused = 0
        self._failed = 0
        self._told = 0
        self._thread = threading.Thread(target=self._write_all, name="hotdelta-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.say(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of logging: a line that cannot be made harms nobody
            self.handleError(record)

    def say(self, line: str) -> None:
        """A line as it is."""
        self.acquire()
        try:
            if self._waiting.qsize() < self._max_lines:
                self._waiting.put(line)
            else:
                self._refused += 1
        finally:
            self.release()

    def flush(self) -> None:
        reached = threading.Event()
        self._waiting.put(reached)
        reached.wait(_FLUSH_SECONDS)

    def close(self) -> None:
        """The thread ends when it has written what waits."""
        self._waiting.put(None)
        super().close()

    def _write_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, threading.Event):
                self._tell_lost()
                item.set()
            elif not self._write(item):
                self._failed += 1
            elif self._waiting.empty():
                self._tell_lost()

    def _tell_lost(self) -> None:
        lost = self._refused + self._failed - self._told
        if lost and self._write(self.format(_lost_record(lost))):
            self._told += lost

    def _write(self, line: str) -> bool:
        """Not through sys.stderr: Python cannot end while a thread that hangs in a write holds its lock."""
        rest = f"{line}\n".encode(errors="backslashreplace")
        try:
            while rest:
                rest = rest[self._write_some(rest) :]
        except OSError:
            return False
        return True

    def _write_some(self, data: bytes) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            # Somebody who shares it made it so.
            room = select.poll()
            room.register(self._descriptor, select.POLLOUT)
            room.poll()
            return 0


def _lost_record(count: int) -> logging.LogRecord:
    phrase = "log lines were lost: they could not be written in time"
    return logging.makeLogRecord(
        {
            "name": __name__,
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": f"{phrase} count={count}",
            "phrase": phrase,
            "fields": {"count": count},
        }
    )


def log_to_stderr(log_format: str) -> LogWriter:
    """Everything in one format: ours from INFO on; what libraries and Python itself have to say, warnings."""
    # A copy: the original is not always what it is now while TensorFlow is imported. There is none when it is closed.
    descriptor = os.dup(sys.stderr.fileno()) if sys.stderr else os.open(os.devnull, os.O_WRONLY)
    log = LogWriter(descriptor)
    log.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    log.start()
    # On the root, and before TensorFlow is imported, which brings handlers of its own when there is none.
    logging.getLogger().addHandler(log)
    logging.captureWarnings(True)
    for name in ("server", "loader", "hotdelta"):
        logging.getLogger(name).setLevel(logging.INFO)
    return log
