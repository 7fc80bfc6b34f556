"""Where predictions and applies meet: predictions share, an apply is exclusive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """A lock for many readers and one writer, in which the writer goes first.

    A writer that arrives waits only for the readers inside; readers that arrive later wait for it. Neither side may
    take it twice in one thread. Used as `with gate:` by readers (this form costs a microsecond), and as
    `with gate.exclusive():` by the writer.
    """

    def __init__(self) -> None:
        self._guard_counts = threading.Lock()
        self._may_enter = threading.Condition(self._guard_counts)
        self._is_empty = threading.Condition(self._guard_counts)
        self._readers = 0
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether a writer is inside or waits."""
        return self._is_closed

    def __enter__(self) -> None:
        with self._guard_counts:
            while self._is_closed:
                self._may_enter.wait()
            self._readers += 1

    def try_enter(self) -> bool:
        """As a reader who does not wait: False while a writer is inside or waits. Else call `leave` in the end."""
        with self._guard_counts:
            if not self._is_closed:
                self._readers += 1
            return not self._is_closed

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def leave(self) -> None:
        with self._guard_counts:
            self._readers -= 1
            if self._is_closed and self._readers == 0:
                self._is_empty.notify()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self._close()
        try:
            yield
        finally:
            self._open()

    def _close(self) -> None:
        with self._guard_counts:
            while self._is_closed:
                self._may_enter.wait()
            self._is_closed = True
            while self._readers:
                self._is_empty.wait()

    def _open(self) -> None:
        with self._guard_counts:
            self._is_closed = False
            self._may_enter.notify_all()
