"""When a hook saves: from intervals, as tf.train has them, or from a CheckpointConfig."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

from hotdelta.chain.store import checkpoint_file
from hotdelta.errors import ConfigurationError
from hotdelta.remote.publish import spool
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.save.options import Telling, WriterOptions
from hotdelta.train.save.schedule import SaveEvery, SavePolicy

DEFAULT_KEEP = 5
# What tf.train has in place of "never".
NEVER_HOURS = 10000
# tf.train.Saver looks for files by pattern before it restores them.
_PATTERN_CHARACTERS = frozenset("*?[\\")


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """Where a chain is, when fulls and deltas are due, and how many fulls are kept (None: as the Saver says).

    `telling`: who is told how it goes.
    """

    run_dir: Path
    full: SavePolicy
    delta: SavePolicy
    keep_fulls: int | None = None
    telling: Telling = field(default_factory=Telling)

    def options(self, keep_of_saver: int) -> WriterOptions:
        """Raises ConfigurationError when the Saver was told another number of fulls."""
        if self.keep_fulls is not None and keep_of_saver not in (self.keep_fulls, DEFAULT_KEEP):
            raise ConfigurationError(
                f"the Saver keeps {keep_of_saver} fulls, the CheckpointConfig {self.keep_fulls}",
                hint="leave max_to_keep out",
            )
        return WriterOptions(self.full, self.delta, self.keep_fulls or keep_of_saver, telling=self.telling)


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
    """Of the address of a store its spool."""
    return refuse_patterns(spool.to_run_directory(given))


def refuse_patterns(directory: Path) -> Path:
    if set(str(directory)) & _PATTERN_CHARACTERS:
        raise ConfigurationError(
            f"TensorFlow takes {str(directory)!r} for a pattern, and would not find the checkpoints that are there",
            hint="use a directory without any of " + " ".join(sorted(_PATTERN_CHARACTERS)),
        )
    return directory


def _of_config(config: CheckpointConfig) -> SaveSchedule:
    run_dir = refuse_patterns(config.run_dir)
    if config.epoch_interval != 1:
        raise ConfigurationError(
            f"epoch_interval is {config.epoch_interval}, but a Session knows steps only, no epochs",
            hint="leave epoch_interval out: then a full is due at every step_interval-th step",
        )
    options = config.writer_options()
    return SaveSchedule(run_dir, options.full, options.delta, options.keep_fulls, options.telling)
