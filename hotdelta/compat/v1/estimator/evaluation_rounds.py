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
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from hotdelta.train.servers.patience import PATIENCE

logger = logging.getLogger(__name__)
v1 = tf.compat.v1

# How often an evaluator looks for a new checkpoint, at most.
LOOK_SECONDS = 1.0


class EvaluationRounds:
    """`metrics` and `exports` are those of the last round, None before the first.

    A round is for a full checkpoint, without the deltas that follow it, and no full has two.
    """

    def __init__(self, estimator: Estimator, spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator = estimator
        self._spec = spec
        self._max_steps = max_steps
        self._evaluated: str | None = None
        self.metrics: dict[str, Any] | None = None
        self.exports: list[Any] | None = None

    @property
    def model_dir(self) -> str:
        return self._estimator.model_dir

    @property
    def step(self) -> int:
        """Of the model in the last round, -1 before the first."""
        return -1 if self.metrics is None else int(self.metrics["global_step"])

    @property
    def is_final(self) -> bool:
        """Whether the last round was of a model that is trained to the end."""
        return self._max_steps is not None and self.step >= self._max_steps

    def run(self) -> bool:
        """One round; False: there is no checkpoint that has had none."""
        path = self._estimator.latest_checkpoint()
        if path is None or path == self._evaluated:
            return False
        if self._evaluated is None:
            self.check_exporters()
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
        """When something was saved. Raises ConfigurationError at once, and not when the training is over.

        Of a trainer that will write deltas an evaluator may see an older checkpoint first.
        """
        is_incremental = any(getattr(each, "save_incr_model", False) for each in self._spec.exporters)
        if is_incremental and not self._estimator.config.is_incremental:
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
        """Raises ConfigurationError when the end of training was not saved where evaluations look for it."""
        if self._rounds.step < global_step_value:
            self._run(global_step_value)
        if self._rounds.step < global_step_value:
            raise ConfigurationError(
                f"the model cannot be evaluated at step {global_step_value}: {self._rounds.model_dir} has no "
                "checkpoint of it",
                hint="the log says whether writing it failed; if not, have a CheckpointSaverHook save there",
            )

    def _run(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        # The trainer's Session is in the middle of a step, but does not wait for its cluster.
        with PATIENCE.paused():
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
