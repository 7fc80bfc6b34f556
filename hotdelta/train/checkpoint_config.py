"""`CheckpointConfig`: where and when to save, as users of PaddlePaddle Fluid say it. One object for every trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from hotdelta.errors import ConfigurationError
from hotdelta.remote.publish.spool import (
    FOLD_DELTAS_ABOVE,
    SpoolOptions,
    check_run_directory,
    to_run_directory,
)
from hotdelta.train.save.options import Telling, WriterOptions
from hotdelta.train.save.schedule import SaveAtSteps, SaveEvery


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """A directory or the address of a store, when fulls and deltas are due, and how many fulls are kept.

    A full is due at every `step_interval`-th step of every `epoch_interval`-th epoch, both counted from 0; and,
    apart from that, when `save_secs` have passed since the last. A delta is due when `save_incremental_secs` or
    `save_incremental_steps` have passed since the last; with neither, only by hand and at the end.
    `metrics_port`, `metrics_registry`, `tensorboard_dir`: who is told how saving goes (docs/metrics.md).
    `spool_dir`, `spool_bytes`, `when_spool_is_full`, `publish_timeout_secs`, `fold_deltas_above`: for the
    address of a store (docs/remote.md).
    """

    checkpoint_dir: str | Path
    max_num_checkpoints: int = 3
    epoch_interval: int = 1
    step_interval: int = 10
    save_secs: float | None = None
    save_incremental_secs: float | None = None
    save_incremental_steps: int | None = None
    metrics_port: int | str | None = None
    metrics_registry: Any = None
    tensorboard_dir: str | Path | None = None
    spool_dir: str | Path | None = None
    spool_bytes: int | None = None
    when_spool_is_full: str = "postpone"
    publish_timeout_secs: float = 60
    fold_deltas_above: int | None = FOLD_DELTAS_ABOVE

    def __post_init__(self) -> None:
        check_run_directory(self.checkpoint_dir)
        self._telling()
        self._spool()
        for name in ("max_num_checkpoints", "epoch_interval", "step_interval"):
            _check_count(name, getattr(self, name))
        if self.save_incremental_steps is not None:
            _check_count("save_incremental_steps", self.save_incremental_steps)
        for name in ("save_secs", "save_incremental_secs"):
            _check_seconds(name, getattr(self, name))

    @property
    def run_dir(self) -> Path:
        """A path, also where an address was given: training writes to its spool."""
        return to_run_directory(self.checkpoint_dir, self._spool())

    def writer_options(self) -> WriterOptions:
        return WriterOptions(
            full=SaveAtSteps(self.epoch_interval, self.step_interval, self.save_secs),
            delta=SaveEvery(seconds=self.save_incremental_secs, steps=self.save_incremental_steps),
            keep_fulls=self.max_num_checkpoints,
            telling=self._telling(),
            spool=self._spool(),
        )

    def _telling(self) -> Telling:
        return Telling.of(self.metrics_port, self.metrics_registry, self.tensorboard_dir)

    def _spool(self) -> SpoolOptions:
        return SpoolOptions.of(
            self.spool_dir,
            self.spool_bytes,
            self.when_spool_is_full,
            self.publish_timeout_secs,
            self.fold_deltas_above,
        )


def settle(checkpoint: str | Path | CheckpointConfig, options: WriterOptions) -> tuple[Path, WriterOptions]:
    """The directory and when to save. Raises ConfigurationError when a config and other intervals are given.

    The path is absolute: a program that changes its working directory goes on with the same chain.
    """
    if not isinstance(checkpoint, CheckpointConfig):
        return to_run_directory(checkpoint, options.spool).absolute(), options
    said = WriterOptions()
    if replace(options, scrub_saves=said.scrub_saves, telling=said.telling, spool=said.spool) != said:
        raise ConfigurationError(
            "when to save is given twice: in the CheckpointConfig and beside it",
            hint="leave the other intervals and keep_fulls out",
        )
    if options.spool != said.spool:
        raise ConfigurationError(
            "the spool is described beside the CheckpointConfig", hint="say it in the CheckpointConfig"
        )
    chosen = checkpoint.writer_options()
    telling = chosen.telling if options.telling == said.telling else options.telling
    return checkpoint.run_dir.absolute(), replace(chosen, scrub_saves=options.scrub_saves, telling=telling)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}", hint="give a whole number, at least 1")


def _check_seconds(name: str, value: Any) -> None:
    is_number = not isinstance(value, bool) and isinstance(value, Real)
    if value is not None and not (is_number and 0 < value < math.inf):
        raise ConfigurationError(f"{name} is {value!r}", hint="give seconds above 0, or None for never")
