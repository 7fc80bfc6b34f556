"""One log line per update, written when its first answer went out, or when there was none for a while.

And three scalars in a file for TensorBoard, where one is wanted.
"""

from __future__ import annotations

from collections.abc import Callable

from hotdelta.event_file import EventFile
from loader.lag import Lag
from loader.model.served import Served
from loader.update_figures import UpdateFigures


class LagReport:
    """Holds back the line of the newest update until it is complete. Belongs to the updater thread.

    `figures`: where updates are counted. `events`: where TensorBoard finds them.
    """

    def __init__(
        self,
        wall_clock: Callable[[], float],
        *,
        figures: UpdateFigures | None = None,
        events: EventFile | None = None,
        patience_seconds: float = 1.0,
    ) -> None:
        self._wall_clock = wall_clock
        self._figures = figures or UpdateFigures()
        self._events = events
        self._patience_seconds = patience_seconds
        self._pending: Served | None = None
        self.updates = 0

    def add(self, served: Served) -> None:
        self.flush()
        self._pending = served
        self.updates += 1
        if served.lag is not None:
            self._figures.count(served.lag)

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def flush_complete(self) -> None:
        """Write the line when it is complete, or has waited long enough."""
        pending = self._pending
        if pending is None:
            return
        age = self._wall_clock() - pending.applied_at
        if pending.first_served_at is not None or not 0 <= age < self._patience_seconds:
            self.flush()

    def flush(self) -> None:
        pending, self._pending = self._pending, None
        lag = pending.lag_now() if pending else None
        if lag is not None:
            self._figures.time(lag)
            lag.log()
            if self._events is not None:
                self._events.write(_scalars(lag), step=lag.step, now=lag.applied_at)

    def close(self) -> None:
        """What is pending is told now."""
        self.flush()
        if self._events is not None:
            self._events.close()


def _scalars(lag: Lag) -> dict[str, float]:
    """How late it was when it could be asked for, whether or not somebody did."""
    told: dict[str, float] = {"hotdelta/update_rows": lag.rows, "hotdelta/update_bytes": lag.bytes}
    if lag.committed_at is not None:
        told["hotdelta/update_lag_seconds"] = lag.applied_at - lag.committed_at
    return told
