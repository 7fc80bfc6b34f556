"""When to save: a small policy, values in, a decision out. No clock of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from hotdelta.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training has come since the last save of a kind, and where it is: `step_in_epoch` steps of `epoch`."""

    seconds: float
    steps: int
    epochs: int
    touched_rows: int
    epoch: int = 0
    step_in_epoch: int = 0


@dataclass(frozen=True, slots=True)
class SaveEvery:
    """A save is due when any one of the given amounts has passed since the last; with none given, only by hand."""

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None
    touched_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "steps", "epochs", "touched_rows"):
            value = getattr(self, name)
            is_number = not isinstance(value, bool) and isinstance(value, Real)
            if value is not None and not (is_number and value > 0):
                raise ConfigurationError(
                    f"cannot save every {value!r} {name}", hint=f"give a number of {name} above 0, or None"
                )

    @property
    def least_steps(self) -> float:
        """After fewer steps it is not due because of them."""
        return math.inf if self.steps is None else self.steps

    def is_due(self, progress: Progress) -> bool:
        pairs = (
            (self.seconds, progress.seconds),
            (self.steps, progress.steps),
            (self.epochs, progress.epochs),
            (self.touched_rows, progress.touched_rows),
        )
        return any(limit is not None and passed >= limit for limit, passed in pairs)


@dataclass(frozen=True, slots=True)
class SaveAtSteps:
    """A save is due at every `step_interval`-th step of every `epoch_interval`-th epoch, or when `seconds` have passed.

    Epochs and steps are counted from 0, as by the Trainer of PaddlePaddle Fluid (contrib/trainer.py): after each step
    it saves when `epoch_id % epoch_interval == 0 and step_id % step_interval == 0`, with the numbers of the epoch and
    of the step just made. So every epoch that counts begins with a save, after its first step, however short it is; a
    resume skips the steps up to the saved one. (Fluid deletes its checkpoints when training ends well; they stay here.)
    """

    epoch_interval: int
    step_interval: int
    seconds: float | None = None

    @property
    def touched_rows(self) -> None:
        """Rows are never counted for it."""

    @property
    def least_steps(self) -> float:
        """Any step may be the one: it depends on the epoch."""
        return 0

    def is_due(self, progress: Progress) -> bool:
        if self.seconds is not None and progress.seconds >= self.seconds:
            return True
        if progress.epoch % self.epoch_interval:
            return False
        last_save = max(0, progress.step_in_epoch - progress.steps)
        return self._saves_within(progress.step_in_epoch) > self._saves_within(last_save)

    def _saves_within(self, steps: int) -> int:
        return -(-steps // self.step_interval)


SavePolicy = SaveEvery | SaveAtSteps
