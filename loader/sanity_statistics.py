"""What recent accepted updates looked like, so that the next one can be compared with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from hotdelta.sanity_limits import WINDOW_UPDATES
from loader.sanity import Figures, Usual


class SanityStatistics:
    """The figures of the last updates of each variable. One thread at a time."""

    def __init__(self, *, min_updates: int) -> None:
        self._min_updates = min_updates
        self._recent: dict[str, deque[Figures]] = {}

    def usual(self, key: str) -> Usual | None:
        """None while too little is known."""
        recent = self._recent.get(key, ())
        if not recent or len(recent) < self._min_updates:
            return None
        return Usual(
            max(item.max_norm for item in recent),
            max(item.max_change for item in recent),
            max(item.touched_share for item in recent),
        )

    def add(self, accepted: Mapping[str, Figures]) -> None:
        for key, figures in accepted.items():
            self._recent.setdefault(key, deque(maxlen=WINDOW_UPDATES)).append(figures)
