"""SIGTERM while training runs: kept until the last steps are saved, then passed on. Never ends a process itself."""

from __future__ import annotations

import inspect
import signal
import threading
from types import FrameType
from typing import Any

import keras


class TerminationSignal:
    """Turns SIGTERM into a flag while training runs, so that the last steps are saved; then lets it take effect.

    When an exception of another callback ended fit, nothing told us that training is over: then the signal takes
    effect at once.
    """

    def __init__(self) -> None:
        self.is_received = False
        self._previous: Any = None
        self._is_installed = False
        self._only_in_fit = False

    def start(self, *, only_in_fit: bool) -> None:
        if not self._is_installed and threading.current_thread() is threading.main_thread():
            self._only_in_fit = only_in_fit
            self._previous = signal.signal(signal.SIGTERM, self._receive)
            self._is_installed = True

    def stop(self) -> None:
        if self._is_installed:
            signal.signal(signal.SIGTERM, self._previous)
            self._is_installed = False

    def pass_on_received(self) -> None:
        """After `stop`."""
        if self.is_received:
            self.is_received = False
            signal.raise_signal(signal.SIGTERM)

    def _receive(self, _number: int, frame: FrameType | None) -> None:
        self.is_received = True
        if self._only_in_fit and not _is_in_fit(frame):
            self.stop()
            self.pass_on_received()


def _is_in_fit(frame: FrameType | None) -> bool:
    fit = inspect.unwrap(keras.Model.fit).__code__
    while frame is not None and frame.f_code is not fit:
        frame = frame.f_back
    return frame is not None
