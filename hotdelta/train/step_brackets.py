"""The steps of a loop that says itself where each of them begins and ends."""

from __future__ import annotations

from typing import Any

from hotdelta.train.save.pauses import Quiet, TrainedBatch


class StepBrackets:
    """Counts steps. The training thread calls `begin` and `end`; any thread may ask."""

    def __init__(self) -> None:
        self._begun = self._ended = 0
        self.batch = TrainedBatch()

    @property
    def are_used(self) -> bool:
        return self._begun > 0

    def begin(self) -> None:
        self._begun += 1

    def end(self) -> None:
        """Also of a step that raised: nothing of it is written after that."""
        self._ended = self._begun

    def note_batch(self, bookmark: Any, event_time: float | None) -> None:
        """What came with the batch that was just trained."""
        if bookmark is not None or event_time is not None:
            self.batch = TrainedBatch(bookmark, event_time)

    def quiet(self) -> Quiet | None:
        return Quiet(self._begun) if self.are_used and self._begun == self._ended else None
