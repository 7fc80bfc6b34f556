"""`tf.estimator.train_and_evaluate`: in one process, or as the task of a cluster that TF_CONFIG says this is."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.estimator.estimator import Estimator
from hotdelta.compat.v1.estimator.evaluation_rounds import (
    EvaluatingListener,
    EvaluationRounds,
    evaluate_continuously,
)
from hotdelta.compat.v1.estimator.exporters import FinalExporter
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.train_specs import EvalSpec, TrainSpec
from hotdelta.compat.v1.graph.cluster_tasks import Server, own_task
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event

logger = logging.getLogger(__name__)
v1 = tf.compat.v1

WORKER_DELAY_SECONDS = 5.0
MAX_WORKER_DELAY_SECONDS = 60.0


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    """The metrics and the exports of the last evaluation of this process; None: it evaluated nothing.

    Raises ConfigurationError when TF_CONFIG does not say what to do. A parameter server never returns.
    """
    for name, given, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(given, kind):
            raise ConfigurationError(f"{name} is {given!r}", hint=f"give a tf.estimator.{kind.__name__}")
    config, rounds = estimator.config, EvaluationRounds(estimator, eval_spec, train_spec.max_steps)
    if config.cluster_spec.jobs:
        config.check_task()
    if config.task_type == "evaluator":
        evaluate_continuously(rounds, eval_spec)
    elif config.task_type == "ps":
        _start_server(config).join()
    else:
        _train(estimator, train_spec, eval_spec, rounds)
    return rounds.metrics, rounds.exports


def _train(estimator: Estimator, spec: TrainSpec, eval_spec: EvalSpec, rounds: EvaluationRounds) -> None:
    """Without a cluster, and as its master, with evaluations; a chief leaves them to the evaluator."""
    config = estimator.config
    listeners: list[Any] = list(spec.saving_listeners or ()) if config.is_chief else []
    is_evaluating = not config.cluster_spec.jobs or config.task_type == "master"
    if is_evaluating:
        listeners.append(EvaluatingListener(rounds, eval_spec.throttle_secs))
    if config.master and own_task(config.master) is None:
        _start_server(config)
    if not config.is_chief:
        time.sleep(worker_delay_seconds(config))
    estimator.train(spec.input_fn, spec.hooks, max_steps=spec.max_steps, saving_listeners=listeners)
    if is_evaluating and rounds.metrics is not None and not rounds.is_final:
        _warn_of_missing_exports(eval_spec.exporters)


def _start_server(config: RunConfig) -> Server:
    options = v1.ConfigProto()
    if config.session_config is not None:
        options.gpu_options.CopyFrom(config.session_config.gpu_options)
    event(logger, logging.INFO, "starting a server", task=f"{config.task_type}:{config.task_id}")
    cluster = config.training_cluster_spec
    return Server(cluster, job_name=config.task_type, task_index=config.task_id, config=options)


def worker_delay_seconds(config: RunConfig) -> float:
    """Workers join one after the other, which helps asynchronous training in its first steps."""
    limit = config.experimental_max_worker_delay_secs
    return min(
        (config.task_id + 1) * WORKER_DELAY_SECONDS, MAX_WORKER_DELAY_SECONDS if limit is None else limit
    )


def _warn_of_missing_exports(exporters: Sequence[Any]) -> None:
    names = [exporter.name for exporter in exporters if isinstance(exporter, FinalExporter)]
    if names:
        event(
            logger,
            logging.WARNING,
            "a FinalExporter exported nothing: training ended before TrainSpec(max_steps=...)",
            exporters=names,
        )
