"""How the updater sleeps: until it is told to look or to report, or until time is up."""

from __future__ import annotations

import threading
from pathlib import Path

Manifests = frozenset[Path]

# Where to look: at these manifests alone, or (None) at everything.
Look = Manifests | None

# So many are found sooner by a look at everything.
_MAX_MANIFESTS = 100


class Wake:
    """Two signals, `look` and `report`. Each is kept until the next wait; any thread may give them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_look_wanted = False
        self._is_report_wanted = False
        self._look: Look = frozenset()

    def look(self, manifest: Path | None = None) -> None:
        """Wake the updater to look at this manifest; without one, at everything."""
        with self._changed:
            self._is_look_wanted = True
            if manifest is None or self._look is None or len(self._look) >= _MAX_MANIFESTS:
                self._look = None
            else:
                self._look |= {manifest}
            self._changed.notify_all()

    def report(self) -> None:
        with self._changed:
            self._is_report_wanted = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Sleeps at most so long. True when a look is wanted: `take` says at what."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_look_wanted or self._is_report_wanted, max(0.0, seconds))
            self._is_report_wanted = False
            return self._is_look_wanted

    def take(self) -> Look:
        """What to look at. Clears the signal."""
        with self._changed:
            look, self._look, self._is_look_wanted = self._look, frozenset(), False
            return look
