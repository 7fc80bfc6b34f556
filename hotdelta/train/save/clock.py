"""How long ago the last save of one kind was: in seconds, steps and epochs."""

from __future__ import annotations

import math
from collections.abc import Callable

from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import Progress, SavePolicy

COUNT_SECONDS = 0.25


class SaveClock:
    """Measures what has passed since the last save and asks the policy. Counting rows is costly, so it is rare.

    What is due stays due until `restart`: a save that has to wait for another one is made up for.
    """

    def __init__(
        self,
        policy: SavePolicy,
        clock: Callable[[], float],
        count_rows: Callable[[], int],
        find_place: Callable[[], TrainerState] = TrainerState,
    ) -> None:
        """`find_place`: in which epoch, and at which step of it, training is now."""
        self._policy = policy
        self._clock = clock
        self._find_place = find_place
        self._count_rows = count_rows
        self.restart()

    def restart(self) -> None:
        self._at = self._counted_at = self._clock()
        self._steps = self._saved_steps = self._epochs = self._rows = 0
        self._is_due = False
        self._plan_look()

    def add(self, *, steps: int = 0, epochs: int = 0) -> None:
        """`steps` below 0: training was put back, or not as far as it was told. What was due may not be."""
        self._steps += steps
        self._epochs += epochs
        self._is_due = self._is_due and steps >= 0

    def may_be_due(self) -> bool:
        """What every step can afford to ask: False while `is_due` would be, if no epoch ended since it was asked."""
        is_by_steps = self._steps >= self._least_steps or self._steps < 0
        return self._is_due or is_by_steps or self._clock() >= self._look_at

    def seconds_to_look(self) -> float:
        """Until `is_due` may be true without another step; infinite when no time makes it so."""
        return 0.0 if self.is_due() else self._look_at - self._clock()

    def note_saved(self) -> None:
        """The save that was begun has the steps up to now."""
        self._saved_steps = self._steps

    @property
    def has_steps(self) -> bool:
        """Whether any step was made that the last save does not have."""
        return self._steps != self._saved_steps

    def _plan_look(self) -> None:
        self._least_steps = self._policy.least_steps
        seconds = self._policy.seconds
        due_at = math.inf if seconds is None else self._at + seconds
        count_at = math.inf if self._policy.touched_rows is None else self._counted_at + COUNT_SECONDS
        self._look_at = min(due_at, count_at)

    def is_due(self) -> bool:
        now = self._clock()
        if self._policy.touched_rows is not None and now - self._counted_at >= COUNT_SECONDS:
            self._rows, self._counted_at = self._count_rows(), now
            self._plan_look()
        place = self._find_place()
        passed = Progress(
            now - self._at, self._steps, self._epochs, self._rows, place.epoch, place.step_in_epoch
        )
        self._is_due = self._is_due or self._policy.is_due(passed)
        # Put back to before the last save: what comes of that is not saved.
        return self._is_due or self._steps < 0


class SaveClocks:
    """One for deltas and one for fulls, which run apart."""

    def __init__(
        self,
        options: WriterOptions,
        clock: Callable[[], float],
        *,
        count_rows: Callable[[], int],
        find_place: Callable[[], TrainerState],
    ) -> None:
        self.delta = SaveClock(options.delta, clock, count_rows, find_place)
        self.full = SaveClock(options.full, clock, count_rows, find_place)

    def add(self, *, steps: int = 0, epochs: int = 0) -> None:
        self.delta.add(steps=steps, epochs=epochs)
        self.full.add(steps=steps, epochs=epochs)

    def may_be_due(self) -> bool:
        return self.delta.may_be_due() or self.full.may_be_due()

    def seconds_to_look(self) -> float:
        """Until a save may be due without another step. No full is, of what the last full has already: look again."""
        full = self.full.seconds_to_look()
        return min(self.delta.seconds_to_look(), full if self.full.has_steps else max(full, COUNT_SECONDS))

    def restart(self) -> None:
        self.delta.restart()
        self.full.restart()
