"""Evaluates checkpoints as they come, and has them exported: between two steps of the trainer, or beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.export_job import require_chain
from hotdelta.compat.v1.estimator.train_specs import EvalSpec
from hotdelta.logs import event

logger = logging.getLogger(__name__)
v1 = tf.compat.v1

# How often an evaluator looks for a new checkpoint, at most.
LOOK_SECONDS = 1.0


class EvaluationRounds:
    """`metrics` and `exports` are those of the last round, None before the first.

    A round is for a full checkpoint, and no full has two. Deltas that follow it are read, too.
    """

    def __init__(self, estimator: Estimator, spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator = estimator
        self._spec = spec
        self._max_steps = max_steps
        self._evaluated: str | None = None
        self.metrics: dict[str, Any] | None = None
        self.exports: list[Any] | None = None

    @property
    def is_final(self) -> bool:
        """Whether the last round was of a model that is trained to the end."""
        if self._max_steps is None or self.metrics is None:
            return False
        return bool(self.metrics["global_step"] >= self._max_steps)

    def run(self) -> bool:
        """One round; False: there is no checkpoint that has had none."""
        path = self._estimator.latest_checkpoint()
        if path is None or path == self._evaluated:
            return False
        spec = self._spec
        self.metrics = self._estimator.evaluate(spec.input_fn, spec.steps, spec.hooks, path, spec.name)
        self._evaluated = path
        self.exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=str(Path(self._estimator.model_dir) / "export" / exporter.name),
                checkpoint_path=path,
                eval_result=self.metrics,
                is_the_final_export=self.is_final,
            )
            for exporter in spec.exporters
        ]
        return True

    def check_exporters(self) -> None:
        """When something was saved. Raises ConfigurationError at once, and not when the training is over."""
        if any(getattr(exporter, "save_incr_model", False) for exporter in self._spec.exporters):
            require_chain(Path(self._estimator.model_dir))


class EvaluatingListener(tf.compat.v1.train.CheckpointSaverListener):
    """A round after each full that the trainer saves, but for the one that it starts with, and at its end.

    Never sooner than so many seconds after the last began, except for the end.
    """

    def __init__(self, rounds: EvaluationRounds, throttle_seconds: float) -> None:
        self._rounds = rounds
        self._timer = v1.train.SecondOrStepTimer(every_secs=throttle_seconds)
        self._first_step: int | None = None

    def before_save(self, session: Any, global_step_value: int) -> None:  # noqa: ARG002 - as tf.train has it
        """Of a chain that is gone on from, the first full is there already: then no `after_save` follows."""
        if self._first_step is None:
            self._first_step = global_step_value

    def after_save(self, session: Any, global_step_value: int) -> None:  # noqa: ARG002 - as tf.train has it
        if global_step_value == self._first_step:
            self._rounds.check_exporters()
        elif self._timer.should_trigger_for_step(global_step_value):
            self._run(global_step_value)

    def end(self, session: Any, global_step_value: int) -> None:  # noqa: ARG002 - as tf.train has it
        if global_step_value != self._timer.last_triggered_step():
            self._run(global_step_value)

    def _run(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        self._rounds.run()


def evaluate_continuously(
    rounds: EvaluationRounds, spec: EvalSpec, *, wait: Callable[[float], None] = time.sleep
) -> None:
    """Until a model was evaluated that is trained to the end."""
    wait(spec.start_delay_secs)
    is_told = False
    while not rounds.is_final:
        began = time.monotonic()
        if rounds.run():
            is_told = False
        elif not is_told:
            event(logger, logging.INFO, "waiting for the next checkpoint to evaluate")
            is_told = True
        passed = time.monotonic() - began
        if not rounds.is_final:
            wait(max(spec.throttle_secs - passed, LOOK_SECONDS))
