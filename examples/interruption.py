"""Ctrl-C and its relatives, heard once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Raises KeyboardInterrupt for the first signal; a second one would leave the children behind that it stops."""

    def __init__(self) -> None:
        self._is_heard = False

    def listen(self) -> None:
        """SIGINT too: a shell that starts us in the background has it ignored, and Python then leaves it so."""
        for number in SIGNALS:
            signal.signal(number, self._hear)

    def check(self) -> None:
        """Raises KeyboardInterrupt once more: the first may have been lost in a destructor."""
        if self._is_heard:
            raise KeyboardInterrupt

    def _hear(self, _number: int, _frame: FrameType | None) -> NoReturn:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._is_heard = True
        raise KeyboardInterrupt
