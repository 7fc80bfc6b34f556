"""How the updater sleeps: until somebody says look, or only that there is something to report, or time is up."""

from __future__ import annotations

import threading


class Wake:
    """A signal with two strengths. Signals are kept until the next wait; any thread may give them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_look_wanted = False
        self._is_report_wanted = False

    def look(self) -> None:
        with self._changed:
            self._is_look_wanted = True
            self._changed.notify_all()

    def report(self) -> None:
        with self._changed:
            self._is_report_wanted = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Sleeps at most so long. True when a look is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_look_wanted or self._is_report_wanted, max(0.0, seconds))
            is_look_wanted = self._is_look_wanted
            self._is_look_wanted = self._is_report_wanted = False
            return is_look_wanted
