"""Runs what a model function built for evaluation or prediction, at a checkpoint and the deltas after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.scan import Scanner
from hotdelta.compat.v1.estimator.spec import EstimatorSpec
from hotdelta.compat.v1.scaffold import Scaffold

v1 = tf.compat.v1


def open_session(scaffold: Any, checkpoint_path: str, *, hooks: Sequence[Any], config: Any) -> Any:
    """A Session of the default graph; `scaffold` is that of the spec, if it has one."""
    if scaffold is None:
        has_chain = bool(Scanner(Path(checkpoint_path).parent).scan().manifests)
        scaffold = Scaffold(incremental_save_restore=has_chain)
    # A model function may make a saving hook in every mode. Who only reads must not write the file `checkpoint`: the
    # trainer may be doing so.
    scaffold.chain_dir = None
    creator = v1.train.ChiefSessionCreator(
        scaffold, config=config, checkpoint_filename_with_path=checkpoint_path
    )
    return v1.train.MonitoredSession(creator, hooks=hooks)


def run_evaluation(
    spec: EstimatorSpec, checkpoint_path: str, *, steps: int | None, hooks: Sequence[Any], config: Any
) -> dict[str, Any]:
    """The metrics over so many batches (None: until the input ends), the loss and the global step."""
    metrics = dict(spec.eval_metric_ops or {})
    metrics.setdefault("loss", v1.metrics.mean(spec.loss))
    updates = tf.group(*(update for _, update in metrics.values()))
    answers = {key: value for key, (value, _) in metrics.items()}
    answers["global_step"] = v1.train.get_global_step()
    all_hooks = [*hooks, *(spec.evaluation_hooks or ())]
    with open_session(spec.scaffold, checkpoint_path, hooks=all_hooks, config=config) as session:
        done = 0
        while (steps is None or done < steps) and not session.should_stop():
            try:
                session.run(updates)
            except tf.errors.OutOfRangeError:
                break
            done += 1
        return dict(session.run_step_fn(lambda step_context: step_context.session.run(answers)))


def run_prediction(
    spec: EstimatorSpec, predictions: Any, checkpoint_path: str, *, hooks: Sequence[Any], config: Any
) -> Iterator[Any]:
    """One batch of answers after another."""
    all_hooks = [*hooks, *(spec.prediction_hooks or ())]
    with open_session(spec.scaffold, checkpoint_path, hooks=all_hooks, config=config) as session:
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
