"""Runs what a model function built for evaluation or prediction, at a checkpoint and the deltas after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.compat.v1.estimator.spec import EstimatorSpec
from hotdelta.compat.v1.sessions.reading_session import checkpoint_directory, has_chain
from hotdelta.compat.v1.sessions.scaffold import Scaffold

v1 = tf.compat.v1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`is_newest`: nobody asked for this very checkpoint, so deltas after it count, too."""

    path: str
    is_newest: bool


class _SessionCreator(tf.compat.v1.train.ChiefSessionCreator):
    """Restores deltas only when they count."""

    def __init__(self, scaffold: Any, config: Any, checkpoint: Checkpoint) -> None:
        super().__init__(scaffold, config=config, checkpoint_filename_with_path=checkpoint.path)
        self._given_scaffold = scaffold
        self._reads_deltas = checkpoint.is_newest

    def create_session(self) -> Any:
        # Only now the scaffold has its Saver for certain.
        self._given_scaffold.finalize().saver.reads_deltas = self._reads_deltas
        return super().create_session()


def open_session(scaffold: Any, checkpoint: Checkpoint, *, hooks: Sequence[Any], config: Any) -> Any:
    """A Session of the default graph; `scaffold` is that of the spec, if it has one."""
    if scaffold is None:
        scaffold = Scaffold(incremental_save_restore=has_chain(checkpoint_directory(checkpoint.path)))
    # A model function may make a saving hook in every mode. Who only reads must not write the file `checkpoint`: the
    # trainer may be doing so.
    scaffold.chain_dir = None
    return v1.train.MonitoredSession(_SessionCreator(scaffold, config, checkpoint), hooks=hooks)


def run_evaluation(
    spec: EstimatorSpec, checkpoint: Checkpoint, *, steps: int | None, hooks: Sequence[Any], config: Any
) -> dict[str, Any]:
    """The metrics over so many batches (None: until the input ends), the loss and the global step."""
    metrics = dict(spec.eval_metric_ops or {})
    metrics.setdefault("loss", v1.metrics.mean(spec.loss))
    updates = tf.group(*(update for _, update in metrics.values()))
    answers = {key: value for key, (value, _) in metrics.items()}
    answers["global_step"] = v1.train.get_global_step()
    all_hooks = [*hooks, *(spec.evaluation_hooks or ())]
    with open_session(spec.scaffold, checkpoint, hooks=all_hooks, config=config) as session:
        done = 0
        while (steps is None or done < steps) and not session.should_stop():
            try:
                session.run(updates)
            except tf.errors.OutOfRangeError:
                break
            done += 1
        return dict(session.run_step_fn(lambda step_context: step_context.session.run(answers)))


def run_prediction(
    spec: EstimatorSpec, predictions: Any, checkpoint: Checkpoint, *, hooks: Sequence[Any], config: Any
) -> Iterator[Any]:
    """One batch of answers after another."""
    all_hooks = [*hooks, *(spec.prediction_hooks or ())]
    with open_session(spec.scaffold, checkpoint, hooks=all_hooks, config=config) as session:
        while not session.should_stop():
            try:
                answers = session.run(predictions)
            except tf.errors.OutOfRangeError:
                return
            yield answers


def single_examples(answers: Any) -> Iterator[Any]:
    """The answers of a batch, one by one."""
    if not isinstance(answers, Mapping):
        yield from answers
        return
    for index in range(len(next(iter(answers.values())))):
        yield {key: value[index] for key, value in answers.items()}


def write_summary(directory: Path, answer: Mapping[str, Any]) -> None:
    """For TensorBoard."""
    summary = v1.Summary()
    for key, value in answer.items():
        if np.ndim(value) == 0 and key != "global_step":
            summary.value.add(tag=key, simple_value=float(value))
    writer = v1.summary.FileWriterCache.get(str(directory))
    writer.add_summary(summary, int(answer["global_step"]))
    writer.flush()
