"""When a hook saves: from intervals, as tf.train has them, or from a CheckpointConfig."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from hotdelta.chain.store import checkpoint_file
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.save.schedule import Progress, SaveEvery, SavePolicy

DEFAULT_KEEP = 5
# What tf.train has in place of "never".
NEVER_HOURS = 10000
# tf.train.Saver looks for files by pattern before it restores them.
_PATTERN_CHARACTERS = frozenset("*?[\\")


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """Where a chain is, when fulls and deltas are due, and how many fulls are kept (None: as the Saver says)."""

    run_dir: Path
    full: SavePolicy
    delta: SavePolicy
    keep_fulls: int | None = None

    def kept(self, keep_of_saver: int) -> int:
        """Raises ConfigurationError when the Saver was told another number."""
        if self.keep_fulls is None or keep_of_saver == self.keep_fulls:
            return keep_of_saver
        if keep_of_saver != DEFAULT_KEEP:
            raise ConfigurationError(
                f"the Saver keeps {keep_of_saver} fulls, the CheckpointConfig {self.keep_fulls}",
                hint="leave max_to_keep out",
            )
        return self.keep_fulls


def find_schedule(
    checkpoint: str | Path | CheckpointConfig,
    *,
    full: tuple[float | None, int | None],
    delta: tuple[float | None, int | None],
) -> SaveSchedule | None:
    """`full` and `delta` are intervals in seconds and in steps. None: no interval for deltas, so there is no chain.

    Raises ConfigurationError when a config and intervals are given, or a directory that is no path.
    """
    if isinstance(checkpoint, CheckpointConfig):
        if any(interval is not None for interval in (*full, *delta)):
            raise given_twice()
        return _of_config(checkpoint)
    if delta == (None, None):
        return None
    return SaveSchedule(
        to_run_directory(checkpoint),
        to_interval(*full),
        to_interval(*delta),
    )


def to_interval(seconds: float | None, steps: int | None) -> SaveEvery:
    """Raises ConfigurationError when one of them is no interval."""
    if steps is not None and not _is_whole(steps):
        raise ConfigurationError(
            f"cannot save every {steps!r} steps", hint="give a whole number of steps, at least 1, or None"
        )
    return SaveEvery(seconds=seconds, steps=steps)


def check_kept(name: str, count: int | None) -> None:
    """Raises ConfigurationError when so many checkpoints cannot be kept."""
    if count is not None and not (_is_whole(count) and count >= 0):
        raise ConfigurationError(
            f"{name} is {count!r}", hint="give a whole number, at least 1; or 0 or None to keep all"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def given_twice() -> ConfigurationError:
    return ConfigurationError(
        "when to save is given twice: in the CheckpointConfig and beside it",
        hint="leave the other intervals, and how many to keep, out",
    )


def refuse_hours(keep_checkpoint_every_n_hours: float) -> None:
    """A full that is kept beyond its turn would keep every delta after it, too."""
    if keep_checkpoint_every_n_hours != NEVER_HOURS:
        raise ConfigurationError(
            f"keep_checkpoint_every_n_hours is {keep_checkpoint_every_n_hours}, which a chain cannot do",
            hint="leave it out, and keep more fulls (max_to_keep), or copy those that shall stay elsewhere",
        )


def refuse_chain(directory: str) -> None:
    """Raises ConfigurationError when a chain is here: who has no interval for deltas does not go on from its deltas."""
    if "://" not in directory and checkpoint_file.list_fulls(Path(directory)):
        raise ConfigurationError(
            f"{directory} holds a chain, but no interval for deltas is given: training would go on without the deltas "
            "that are there, and save over committed files",
            hint="pass the incremental interval, too, or another directory",
        )


def to_run_directory(given: str | Path) -> Path:
    directory = to_directory(given)
    if set(str(directory)) & _PATTERN_CHARACTERS:
        raise ConfigurationError(
            f"TensorFlow takes {str(directory)!r} for a pattern, and would not find the checkpoints that are there",
            hint="use a directory without any of " + " ".join(sorted(_PATTERN_CHARACTERS)),
        )
    return directory


def _of_config(config: CheckpointConfig) -> SaveSchedule:
    run_dir = to_run_directory(config.checkpoint_dir)
    if config.epoch_interval != 1:
        raise ConfigurationError(
            f"epoch_interval is {config.epoch_interval}, but a Session knows steps only, no epochs",
            hint="leave epoch_interval out: then a full is due at every step_interval-th step",
        )
    options = config.writer_options()
    return SaveSchedule(run_dir, options.full, options.delta, options.keep_fulls)


class PolicyTimer:
    """What tf.train.SecondOrStepTimer is to a hook, for any policy. Steps are global steps: one epoch, the first."""

    def __init__(self, policy: SavePolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._seconds = 0.0
        self._step: int | None = None

    def reset(self) -> None:
        self._step = None

    def should_trigger_for_step(self, step: int) -> bool:
        """A step before the last one that was saved: training was put back, and what came of it is not saved."""
        if self._step is None or step < self._step:
            return True
        passed = Progress(
            seconds=self._clock() - self._seconds,
            steps=step - self._step,
            epochs=0,
            touched_rows=0,
            step_in_epoch=step,
        )
        return step > self._step and self._policy.is_due(passed)

    def seconds_to_trigger(self, step: int) -> float | None:
        """Until a save is due if no step follows this one; None: it will not be."""
        if self.should_trigger_for_step(step):
            return 0.0
        return self.seconds_left if step != self._step else None

    @property
    def seconds_left(self) -> float | None:
        """Until it is due by time, if steps were made; None: never."""
        seconds = self._policy.seconds
        return None if seconds is None else max(0.0, self._seconds + seconds - self._clock())

    @property
    def is_by_steps(self) -> bool:
        return self._policy.least_steps < math.inf

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Seconds and steps since the last."""
        now = self._clock()
        passed = (None, None) if self._step is None else (now - self._seconds, step - self._step)
        self._seconds, self._step = now, step
        return passed

    def last_triggered_step(self) -> int | None:
        return self._step
