"""What the updates of one model have come to since its loader was started."""

from __future__ import annotations

from collections import Counter, deque

from hotdelta.errors import ApplyError, DamagedError, HoleError, HotdeltaError, SanityError, SchemaError
from hotdelta.figures import STAGE_SECONDS, Histogram
from loader.lag import STAGES, Lag

RECENT_UPDATES = 512

BAD_VALUES = "values"
# The first that an error is, is its cause.
_CAUSES: tuple[tuple[type[HotdeltaError], str], ...] = (
    (SanityError, BAD_VALUES),
    (DamagedError, "files"),
    (SchemaError, "schema"),
    (HoleError, "hole"),
    (ApplyError, "apply"),
)
OTHER_CAUSE = "other"
ROLLED_BACK = "rolled_back"
CAUSES = (*(cause for _, cause in _CAUSES), ROLLED_BACK, OTHER_CAUSE)


def cause_of(error: HotdeltaError) -> str:
    """One word of a few, where the message of an error may say anything."""
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), OTHER_CAUSE)


class UpdateFigures:
    """Counts of one model. Written by its updater thread, read by any.

    `stages`: seconds, by the stage of an update; `served`: from its commit to its first answer. `recent`: the newest
    updates, each replaced by what is known of it once it was first served.
    """

    def __init__(self) -> None:
        self.stages = {stage: Histogram(STAGE_SECONDS) for stage in STAGES}
        self.served = Histogram(STAGE_SECONDS)
        self.updates: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.keys_new: Counter[str] = Counter()
        self.keys_deleted: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.bytes = 0
        self.recent: deque[Lag] = deque(maxlen=RECENT_UPDATES)

    def count(self, lag: Lag) -> None:
        """An update was applied."""
        self.updates[lag.kind] += 1
        self.bytes += lag.bytes
        for change in lag.changes:
            self.rows[change.table] += change.rows
            if change.has_keys:
                self.keys_new[change.table] += change.keys_new
                self.keys_deleted[change.table] += change.keys_deleted
        self.recent.append(lag)

    def time(self, lag: Lag) -> None:
        """All is known of the times of the newest update that was counted."""
        for stage, milliseconds in lag.stages_ms().items():
            # A clock of another machine may be ahead of ours.
            self.stages[stage].observe(max(0.0, milliseconds / 1000))
        if lag.commit_to_served_ms is not None:
            self.served.observe(max(0.0, lag.commit_to_served_ms / 1000))
        if self.recent and self.recent[-1].position == lag.position:
            self.recent[-1] = lag

    def count_failure(self, error: HotdeltaError) -> None:
        """An update was not taken: each attempt counts."""
        self.failures[cause_of(error)] += 1
