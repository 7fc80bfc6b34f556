"""tf.estimator.experimental: training ends by what evaluations said, in one process and in a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hotdelta.compat.v1 as tf
from hotdelta.errors import ConfigurationError
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_estimators import estimator_of
from tests.compat.graph_mode.small_graphs import new_graph

EVERY_STEP: dict[str, Any] = {"run_every_secs": None, "run_every_steps": 1}
STEPS = 3


def write_evaluations(directory: str, accuracies: Mapping[int, float]) -> None:
    writer = tf.summary.FileWriter(directory)
    for step, accuracy in accuracies.items():
        writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag="accuracy", simple_value=accuracy)]), step)
    writer.close()


def steps_trained(hook: Any) -> int:
    """Of three; fewer when the hook ended training."""
    with new_graph():
        count = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        with tf.train.MonitoredSession(hooks=[hook, tf.train.StopAtStepHook(num_steps=STEPS)]) as session:
            done = 0
            while not session.should_stop():
                done = int(session.run(count))
        assert tf.train.get_global_step() in tf.global_variables()
        assert len(tf.global_variables()) == 1, "the hook adds nothing that would be saved"
    return done


@pytest.mark.parametrize(
    "name, limit, options, is_stopped",
    [
        ("stop_if_higher_hook", 0.85, {}, True),
        ("stop_if_higher_hook", 0.95, {}, False),
        ("stop_if_higher_hook", 0.85, {"min_steps": 30}, False),
        ("stop_if_lower_hook", 0.55, {}, True),
        ("stop_if_lower_hook", 0.45, {}, False),
        ("stop_if_no_increase_hook", 10, {}, True),
        ("stop_if_no_increase_hook", 20, {}, False),
        ("stop_if_no_decrease_hook", 20, {}, True),
        ("stop_if_no_decrease_hook", 30, {}, False),
    ],
)
def test_training_ends_when_an_evaluation_says_so(
    tmp_path: Path, name: str, limit: float, options: dict[str, Any], is_stopped: bool
) -> None:
    estimator = estimator_of(tmp_path)
    make = getattr(tf.estimator.experimental, name)
    hook = make(estimator, "accuracy", limit, **options, **EVERY_STEP)
    write_evaluations(estimator.eval_dir(), {10: 0.5, 20: 0.9, 30: 0.8})
    assert steps_trained(hook) == (1 if is_stopped else STEPS)


def test_a_metric_that_no_evaluation_has_is_named(tmp_path: Path) -> None:
    estimator = estimator_of(tmp_path)
    write_evaluations(estimator.eval_dir("weekly"), {10: 0.5})
    hook = tf.estimator.experimental.stop_if_lower_hook(
        estimator, "auc", 0.5, eval_dir=estimator.eval_dir("weekly"), **EVERY_STEP
    )
    with pytest.raises(ConfigurationError, match=r"eval_weekly have no metric 'auc'.*accuracy"):
        steps_trained(hook)


def test_without_an_evaluation_nothing_ends_training(tmp_path: Path) -> None:
    stop_if_lower = tf.estimator.experimental.stop_if_lower_hook
    assert steps_trained(stop_if_lower(estimator_of(tmp_path), "accuracy", 1.0, **EVERY_STEP)) == STEPS


def test_workers_stop_when_their_chief_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = fresh_cluster()
    decisions: list[bool] = []
    sessions = []
    for index, target in enumerate(cluster.targets):
        task = {"cluster": cluster.spec.as_dict(), "task": {"type": "worker", "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        hook = tf.estimator.experimental.make_early_stopping_hook(
            estimator_of(tmp_path), decisions.pop, **EVERY_STEP
        )
        with new_graph(), cluster.device():
            count = tf.assign_add(tf.train.get_or_create_global_step(), 1)
            maker = tf.train.WorkerSessionCreator if index else tf.train.ChiefSessionCreator
            sessions.append((tf.train.MonitoredSession(maker(master=target), [hook]), count))
    (chief, counted), (worker, counted_by_worker) = sessions
    decisions[:] = [True, False]
    chief.run(counted)
    worker.run(counted_by_worker)
    assert not worker.should_stop()
    chief.run(counted)
    assert chief.should_stop()
    worker.run(counted_by_worker)
    assert worker.should_stop()
    chief.close()
    worker.close()


def test_when_to_ask_is_given_once(tmp_path: Path) -> None:
    make: Any = tf.estimator.experimental.make_early_stopping_hook
    with pytest.raises(ConfigurationError, match="run_every_secs is 60 and run_every_steps 5"):
        make(estimator_of(tmp_path), bool, run_every_steps=5)
    with pytest.raises(ConfigurationError, match="should_stop_fn is 7"):
        make(estimator_of(tmp_path), 7)
    with pytest.raises(ConfigurationError, match="estimator is 'model'"):
        make("model", bool)
