"""Saves while training waits: when no step ends for a moment, what is due is saved by a thread of its own.

A cut belongs between two steps. The training thread knows when it is there; this thread has to be told, by a
`StepWatch`, before the cut and again after it. What a step has interrupted is given back and left to training.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from hotdelta.logs import event

logger = logging.getLogger(__name__)

# How long no step must have ended before this thread tries, at least; training itself saves between its steps.
PAUSE_SECONDS = 0.01
# How long it waits, at most, before it tries again while a step is under way.
MOST_PATIENCE_SECONDS = 0.25
# How long a save must have been due before it is said that pauses cannot be used.
BLIND_SECONDS = 1.0
STOP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Quiet:
    """No step is under way. Two that are equal: none was in between, either.

    `steps`: a count of them; None where they are made on other machines, and a cut waits for nobody. `untold`: of
    those that are finished, how many nobody has told of yet.
    """

    steps: int | None
    untold: int = 0


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """What came with the last batch that was trained: where its reader goes on, and the newest event time so far."""

    bookmark: Any = None
    event_time: float | None = None


class StepWatch(Protocol):
    """What whoever trains knows of its steps. Asked by any thread, with the lock of the saver held."""

    def quiet(self) -> Quiet | None:
        """None: a step may be writing, or what is trained must be looked at before it is saved."""
        ...

    def why_blind(self) -> str | None:
        """Why `quiet` will never tell, when it will not."""
        ...

    def count_untold(self) -> int:
        """On the training thread: how many steps were made that nobody told of."""
        ...

    def trained_batch(self) -> TrainedBatch: ...


class StepBrackets:
    """The steps of a loop that says itself where each begins and ends. The training thread does; any thread may ask."""

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


class SavesInPauses(Protocol):
    """What is saved, as this thread sees it. Every method may be called by any thread."""

    @property
    def told_steps(self) -> int: ...

    @property
    def pause_seconds(self) -> float:
        """How long a pause must last: a cut that takes longer than the pause is in vain."""
        ...

    def seconds_to_save(self) -> float | None:
        """Until something is due; None while that is not known, and `PauseSaver.look` will be called."""
        ...

    def save_in_pause(self) -> bool:
        """False: there was no moment for it, because a step is under way."""
        ...

    def why_blind(self) -> str | None: ...


class PauseSaver:
    """The thread `hotdelta-pauses`, from `start` to `stop`. It holds no lock of its own and owns nothing."""

    def __init__(self, saves: SavesInPauses) -> None:
        self._saves = saves
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="hotdelta-pauses", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Something may be due that was not a moment ago."""
        self._wake.set()

    def stop(self) -> None:
        """Not with the lock of the saves held: this thread may be waiting for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._is_stopping = True
            self._wake.set()
            thread.join(STOP_SECONDS)

    def _run(self) -> None:
        patience_seconds = 0.0
        while not self._is_stopping:
            seconds = self._saves.seconds_to_save()
            if seconds is None or seconds > 0:
                self._wait(seconds)
                continue
            told, reason = self._saves.told_steps, self._saves.why_blind()
            self._wait(max(patience_seconds, self._saves.pause_seconds) if reason is None else BLIND_SECONDS)
            if told != self._saves.told_steps:
                patience_seconds = 0.0
            elif reason is not None:
                event(logger, logging.WARNING, "saves that are due wait for the next step", reason=reason)
                return
            elif self._try_to_save(told):
                patience_seconds = 0.0
            else:
                patience_seconds = min(2 * max(patience_seconds, PAUSE_SECONDS), MOST_PATIENCE_SECONDS)

    def _try_to_save(self, told: int) -> bool:
        try:
            return self._saves.save_in_pause()
        except Exception as error:  # noqa: BLE001 - the edge of the thread; training meets it at its next save
            event(logger, logging.ERROR, "a save failed while training waits", reason=repr(error))
            while not self._is_stopping and told == self._saves.told_steps:
                self._wait(BLIND_SECONDS)
            return True

    def _wait(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()
