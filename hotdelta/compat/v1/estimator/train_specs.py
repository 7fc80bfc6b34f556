"""What `train_and_evaluate` is told: on what to train and until when, on what to evaluate and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.estimator.exporters import Exporter
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1


@dataclass(frozen=True)
class TrainSpec:
    """tf.estimator.TrainSpec. `max_steps` is the global step to stop at; None: train until the input ends."""

    input_fn: Any
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None
    saving_listeners: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        _require_function("TrainSpec: input_fn", self.input_fn)
        if self.max_steps is not None:
            _require_at_least("TrainSpec: max_steps", self.max_steps, 1)
        hooks = _all_of("TrainSpec: hooks", self.hooks, v1.train.SessionRunHook)
        listener_type = v1.train.CheckpointSaverListener
        listeners = _all_of("TrainSpec: saving_listeners", self.saving_listeners, listener_type)
        object.__setattr__(self, "hooks", hooks)
        object.__setattr__(self, "saving_listeners", listeners)

    def _replace(self, **changes: Any) -> TrainSpec:
        """A copy; the name is that of a namedtuple, which tf.estimator.TrainSpec was."""
        return replace(self, **changes)


@dataclass(frozen=True)
class EvalSpec:
    """tf.estimator.EvalSpec. `steps` are batches for each evaluation; None: until the input ends.

    `throttle_secs`: so many are between the beginnings of two evaluations, at least. `start_delay_secs`: so many the
    evaluator of a cluster waits before its first.
    """

    input_fn: Any
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Any] | None = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        _require_function("EvalSpec: input_fn", self.input_fn)
        if self.steps is not None:
            _require_at_least("EvalSpec: steps", self.steps, 1)
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigurationError(f"EvalSpec: name is {self.name!r}", hint="give a string, or None")
        _require_at_least("EvalSpec: start_delay_secs", self.start_delay_secs, 0)
        _require_at_least("EvalSpec: throttle_secs", self.throttle_secs, 0)
        hooks = _all_of("EvalSpec: hooks", self.hooks, v1.train.SessionRunHook)
        object.__setattr__(self, "hooks", hooks)
        object.__setattr__(self, "exporters", _checked_exporters(self.exporters))

    def _replace(self, **changes: Any) -> EvalSpec:
        """A copy; the name is that of a namedtuple, which tf.estimator.EvalSpec was."""
        return replace(self, **changes)


def _require_function(name: str, given: Any) -> None:
    if not callable(given):
        raise ConfigurationError(f"{name} is {given!r}", hint="give a function")


def _require_at_least(name: str, given: Any, least: int) -> None:
    if not (isinstance(given, Real) and float(given) >= least):
        raise ConfigurationError(f"{name} is {given!r}", hint=f"give a number of at least {least}")


def _all_of(name: str, given: Any, kind: type) -> tuple[Any, ...]:
    found = tuple(given or ())
    for each in found:
        if not isinstance(each, kind):
            raise ConfigurationError(f"{name} has {each!r} in it", hint=f"give tf.train.{kind.__name__}s")
    return found


def _checked_exporters(given: Any) -> tuple[Exporter, ...]:
    """Each writes to a directory of its own, which has its name."""
    exporters = (given,) if isinstance(given, Exporter) else tuple(given or ())
    for each in exporters:
        if not isinstance(each, Exporter):
            raise ConfigurationError(
                f"EvalSpec: exporters has {each!r} in it",
                hint="give a tf.estimator.Exporter, or a list of them",
            )
    names = [each.name for each in exporters]
    if any(not isinstance(name, str) or not name for name in names) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"EvalSpec: exporters are called {names}", hint="give each a name, and no two the same"
        )
    return exporters
