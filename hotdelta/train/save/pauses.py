"""Saves while training waits: when no step ends for a moment, what is due is saved by a thread of its own.

A cut belongs between two steps. The training thread knows when it is there; this thread has to be told, by a
`StepWatch`, before the cut and again after it. What a step has interrupted is given back and left to training.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hotdelta.logs import event

if TYPE_CHECKING:
    from hotdelta.train.save.chain_trainer import ChainTrainer
    from hotdelta.train.save.engine import SaveEngine

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

    `steps`: a count of them. `untold`: of those that are finished, how many nobody has told of yet. `is_alone`: False
    where others train too, on other machines: a cut waits for none of their steps, and `steps` does not count them.
    """

    steps: int
    untold: int = 0
    is_alone: bool = True


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

    def note_steps(self, steps: int) -> bool:
        """On the training thread, which pays for it at every step: True when `prove_recording` cannot wait."""
        ...

    def prove_recording(self) -> None:
        """On the training thread, before a save: does what was trained record what it writes?"""
        ...


class StepBrackets:
    """The steps of a loop that says itself where each begins and ends. The training thread does; any thread may ask."""

    def __init__(self, *, has_workers: bool = False) -> None:
        """`has_workers`: they make the steps, on other machines, and a cut never waits for them."""
        self._has_workers = has_workers
        self._begun = self._ended = 0
        self._batch = TrainedBatch()

    @property
    def are_used(self) -> bool:
        return self._begun > 0

    def tell(self, trainer: ChainTrainer, steps: int, batch: TrainedBatch) -> None:
        """Tell it of steps; `batch`: the last of them."""
        with trainer.lock:
            if batch.bookmark is not None or batch.event_time is not None:
                self._batch = batch
            trainer.step(steps)

    @contextmanager
    def around_step(self, trainer: ChainTrainer, batch: TrainedBatch) -> Iterator[None]:
        """Around all that one step writes. It is told of afterwards, unless it raises."""
        self._begun += 1
        try:
            yield
        except BaseException:
            # Nothing of it is written after that.
            self._ended = self._begun
            raise
        with trainer.lock:
            self._ended = self._begun
            self.tell(trainer, 1, batch)

    def trained_batch(self) -> TrainedBatch:
        return self._batch

    def quiet(self) -> Quiet | None:
        if self._has_workers:
            return Quiet(0, is_alone=False)
        return Quiet(self._begun) if self.are_used and self._begun == self._ended else None

    def why_blind(self) -> str | None:
        if self._has_workers or self.are_used:
            return None
        return "nothing tells when a step begins; put it into `with writer.training_step():`"

    def count_untold(self) -> int:
        return 0

    def note_steps(self, steps: int) -> bool:  # noqa: ARG002 - every one is like the last
        return False

    def prove_recording(self) -> None:
        pass


class PauseSaver:
    """The thread `hotdelta-pauses`, from `start` to `stop`. It holds no lock of its own and owns nothing."""

    def __init__(self, engine: SaveEngine) -> None:
        self._engine = engine
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
        """Not with the lock of the engine held: this thread may be waiting for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._is_stopping = True
            self._wake.set()
            thread.join(STOP_SECONDS)

    def _run(self) -> None:
        patience_seconds = 0.0
        while not self._is_stopping:
            seconds = self._engine.seconds_to_save()
            if seconds is None or seconds > 0:
                self._wait(seconds)
                continue
            told, reason = self._engine.told_steps, self._engine.why_blind()
            self._wait(max(patience_seconds, self._engine.pause_seconds) if reason is None else BLIND_SECONDS)
            if told != self._engine.told_steps:
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
            return self._engine.save_in_pause()
        except Exception as error:  # noqa: BLE001 - the edge of the thread; training meets it at its next save
            event(logger, logging.ERROR, "a save failed while training waits", reason=repr(error))
            while not self._is_stopping and told == self._engine.told_steps:
                self._wait(BLIND_SECONDS)
            return True

    def _wait(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()
