"""tf.estimator.experimental: hooks that end training early, by what evaluations say or by a function of your own."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.eval_events import read_results
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event

__all__ = [
    "make_early_stopping_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]

logger = logging.getLogger(__name__)
v1 = tf.compat.v1


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Ends training when the function, which the chief asks so often, says so. The workers follow the chief."""
    if not isinstance(estimator, Estimator):
        raise ConfigurationError(f"estimator is {estimator!r}", hint="give a tf.estimator.Estimator")
    if not callable(should_stop_fn):
        raise ConfigurationError(f"should_stop_fn is {should_stop_fn!r}", hint="give a function")
    if (run_every_secs is None) == (run_every_steps is None):
        raise ConfigurationError(
            f"run_every_secs is {run_every_secs} and run_every_steps {run_every_steps}",
            hint="give one of them, and None for the other",
        )
    if not estimator.config.is_chief:
        return _FollowingHook()
    timer = v1.train.SecondOrStepTimer(every_secs=run_every_secs, every_steps=run_every_steps)
    return _DecidingHook(should_stop_fn, timer)


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Ends training when an evaluation, at `min_steps` or later, has a metric above the threshold."""
    values = _Values(estimator, metric_name, eval_dir, min_steps)

    def is_higher() -> bool:
        return any(value > threshold for _, value in values)

    return make_early_stopping_hook(estimator, is_higher, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Ends training when an evaluation, at `min_steps` or later, has a metric below the threshold."""
    values = _Values(estimator, metric_name, eval_dir, min_steps)

    def is_lower() -> bool:
        return any(value < threshold for _, value in values)

    return make_early_stopping_hook(estimator, is_lower, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Ends training when the best value of a metric is so many steps older than some evaluation after it."""
    values = _Values(estimator, metric_name, eval_dir, min_steps)

    def has_stalled() -> bool:
        return values.have_stalled(operator.gt, max_steps_without_increase)

    return make_early_stopping_hook(estimator, has_stalled, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """As stop_if_no_increase_hook, of a metric of which less is better."""
    values = _Values(estimator, metric_name, eval_dir, min_steps)

    def has_stalled() -> bool:
        return values.have_stalled(operator.lt, max_steps_without_decrease)

    return make_early_stopping_hook(estimator, has_stalled, run_every_secs, run_every_steps)


class _Values:
    """The steps and values of one metric in all evaluations so far, read anew each time."""

    def __init__(self, estimator: Estimator, metric: str, eval_dir: str | None, min_steps: int) -> None:
        self._directory = Path(eval_dir or estimator.eval_dir())
        self._metric = metric
        self._min_steps = min_steps

    def __iter__(self) -> Iterator[tuple[int, float]]:
        results: dict[int, dict[str, float]] = {}
        for step, metrics in read_results(self._directory, "events.out.tfevents.*"):
            results.setdefault(step, {}).update(metrics)
        for step, metrics in sorted(results.items()):
            if step < self._min_steps:
                continue
            if self._metric not in metrics:
                raise ConfigurationError(
                    f"the evaluations in {self._directory} have no metric {self._metric!r}",
                    hint=f"name one of {', '.join(sorted(metrics))}",
                )
            yield step, metrics[self._metric]

    def have_stalled(self, is_better: Callable[[float, float], bool], max_steps: int) -> bool:
        best: tuple[int, float] | None = None
        for step, value in self:
            if best is None or is_better(value, best[1]):
                best = (step, value)
            if step - best[0] >= max_steps:
                return True
        return False


class _SignalHook(tf.compat.v1.train.SessionRunHook):
    """Has the sign by which the chief stops its workers, on a parameter server.

    It is no variable of the model: it is in no checkpoint, so that training may go on with or without such a hook.
    """

    def begin(self) -> None:
        with v1.variable_scope("signal_early_stopping", reuse=v1.AUTO_REUSE, use_resource=True):
            self._sign = v1.get_variable("STOP", initializer=False, trainable=False, collections=[])


class _DecidingHook(_SignalHook):
    def __init__(self, should_stop: Callable[[], bool], timer: Any) -> None:
        self._should_stop = should_stop
        self._timer = timer

    def begin(self) -> None:
        super().begin()
        self._timer.reset()
        self._step = v1.train.get_global_step()
        self._raise_sign = self._sign.assign(True).op

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 - as tf.train has it
        session.run(self._sign.initializer)

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002 - as tf.train has it
        return v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.results
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if self._should_stop():
            event(logger, logging.INFO, "training is ended early", step=int(step))
            run_context.session.run(self._raise_sign)
            run_context.request_stop()


class _FollowingHook(_SignalHook):
    def begin(self) -> None:
        super().begin()
        # The chief, which initializes it, may come later.
        self._is_raised = tf.cond(
            self._sign.is_initialized(), self._sign.read_value, lambda: tf.constant(False)
        )

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002 - as tf.train has it
        return v1.train.SessionRunArgs(self._is_raised)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results:
            event(logger, logging.INFO, "the chief ends training early")
            run_context.request_stop()


def __getattr__(name: str) -> Any:
    raise AttributeError(f"tf.estimator.experimental.{name} is not here: there are {', '.join(__all__)}")
