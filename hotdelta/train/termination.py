"""How training ends. SIGTERM: kept until the last steps are saved, then passed on. An exception: no save hides it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hotdelta.errors import HotdeltaError
from hotdelta.logs import event

logger = logging.getLogger(__name__)


@contextmanager
def in_flight(error: BaseException | None) -> Iterator[None]:
    """Around a last save: when `error` ends training already, one that fails is logged, and noted in it.

    Not beside SystemExit, which may say that all went well.
    """
    try:
        yield
    except HotdeltaError as failure:
        if error is None or isinstance(error, SystemExit):
            raise
        event(logger, logging.ERROR, "the last save failed", reason=failure)
        error.add_note(f"hotdelta: {failure}")


class TerminationSignal:
    """Turns SIGTERM into a flag while training runs, so that the last steps are saved; then lets it take effect."""

    def __init__(self) -> None:
        self.is_received = False
        self._previous: Any = None
        self._is_installed = False
        self._is_training: Callable[[FrameType | None], bool] | None = None

    def start(self, is_training: Callable[[FrameType | None], bool] | None = None) -> None:
        """`is_training` tells from the frame that was interrupted whether anybody will look at the flag.

        When it says no, the signal takes effect at once.
        """
        if not self._is_installed and threading.current_thread() is threading.main_thread():
            self._is_training = is_training
            # All of it before the signal can come.
            self._previous = signal.getsignal(signal.SIGTERM)
            self._is_installed = True
            signal.signal(signal.SIGTERM, self._receive)

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
        if self._is_training is not None and not self._is_training(frame):
            self.stop()
            self.pass_on_received()
