"""How other threads ask the updater for something: they queue a call and wait for what it returns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from hotdelta.errors import NotReadyError

Result = TypeVar("Result")

TIMEOUT_SECONDS = 120.0


class CommandQueue:
    """Calls for the updater thread. `ask` is for any thread, the rest for the updater and its owner."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._guard_queue = threading.Lock()
        self._queue: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._is_closed = True

    def open(self) -> None:
        self._is_closed = False

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for the updater: a long plan should be interrupted after its current step."""
        return bool(self._queue)

    def ask(self, call: Callable[[], Result], *, timeout_seconds: float = TIMEOUT_SECONDS) -> Result:
        """Runs `call` between two updates. Raises what it raises, NotReadyError when the updater does not run."""
        future: Future[Result] = Future()
        with self._guard_queue:
            if self._is_closed:
                raise NotReadyError("the model is not being updated: it has not been started, or is stopping")
            self._queue.append((call, future))
        self._wake()
        try:
            return future.result(timeout_seconds)
        except FutureTimeoutError as error:
            if future.cancel():
                raise NotReadyError(
                    f"the updater did not come to it within {timeout_seconds:g} seconds"
                ) from error
            return future.result()

    def run_waiting(self) -> None:
        while True:
            with self._guard_queue:
                if not self._queue:
                    return
                call, future = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                _run(call, future)

    def close(self) -> None:
        """Refuse the calls that still wait, and all later ones."""
        with self._guard_queue:
            self._is_closed = True
            waiting, self._queue = self._queue, deque()
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(NotReadyError("the loader is stopping"))


def _run(call: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - whoever asked gets it, whatever it is
        future.set_exception(error)
