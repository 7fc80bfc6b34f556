"""When hooks save: a CheckpointConfig is taken wherever a directory is, and what it cannot do is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind
from hotdelta.errors import ConfigurationError
from hotdelta.train import CheckpointConfig
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.checks_of_estimators import examples
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    new_graph,
    train,
)


def config_of(directory: Path, **options: Any) -> CheckpointConfig:
    return CheckpointConfig(directory, **{"step_interval": 3, "save_incremental_steps": 1, **options})


def steps_of(directory: Path, kind: Kind) -> list[int]:
    return [manifest.step for manifest in manifests(directory, kind)]


def test_a_session_saves_when_the_config_says_so(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        config = config_of(tmp_path, max_num_checkpoints=2)
        with tf.train.MonitoredTrainingSession(checkpoint_dir=config, log_step_count_steps=None) as session:
            train(session, model, [[1]] * 8)
            # As in Fluid: after the first step, and then after every third.
            assert steps_of(tmp_path, Kind.FULL) == [4, 7]
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
    assert steps_of(tmp_path, Kind.FULL) == [7, 8]
    assert steps_of(tmp_path, Kind.DELTA)[-1] == 8


def test_without_an_interval_for_deltas_there_are_those_of_the_fulls(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        scaffold = tf.train.Scaffold(incremental_save_restore=True)
        config = config_of(tmp_path, save_incremental_steps=None)
        hook = tf.train.CheckpointSaverHook(config, scaffold=scaffold)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=None, scaffold=scaffold, chief_only_hooks=[hook]
        ) as session:
            train(session, model, [[1]] * 5)
    assert steps_of(tmp_path, Kind.DELTA) == [1, 4, 5]


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    table = tf.get_variable("table", [30, 4])
    loss = (
        tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, features["id"]))) + tf.reduce_sum(labels) * 0
    )
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_an_estimator_saves_when_the_config_says_so(tmp_path: Path) -> None:
    run_config = tf.estimator.RunConfig(model_dir=config_of(tmp_path, max_num_checkpoints=1))
    assert (run_config.model_dir, run_config.keep_checkpoint_max) == (str(tmp_path), 1)
    trained = tf.estimator.Estimator(model_fn, config=run_config)
    trained.train(examples, steps=5)
    assert trained.model_dir == str(tmp_path)
    assert steps_of(tmp_path, Kind.FULL) == [5]
    trained = tf.estimator.Estimator(model_fn, model_dir=config_of(tmp_path))
    trained.train(examples, steps=1)
    assert steps_of(tmp_path, Kind.FULL)[-1] == 6


HOOK: dict[str, Any] = {
    "save_steps": 5,
    "save_secs": 5,
    "incremental_save_secs": 5,
    "incremental_save_steps": 5,
}
SESSION: dict[str, Any] = {
    "save_checkpoint_secs": 5,
    "save_checkpoint_steps": 5,
    "save_incremental_checkpoint_secs": 5,
    "save_incremental_checkpoint_steps": 5,
}
RUN: dict[str, Any] = {
    "save_checkpoints_secs": 5,
    "save_checkpoints_steps": 5,
    "save_incremental_checkpoint_secs": 5,
    "save_incremental_checkpoint_steps": 5,
    "keep_checkpoint_max": 9,
}


@pytest.mark.parametrize("option", HOOK.items(), ids=str)
def test_a_hook_refuses_a_second_interval(tmp_path: Path, option: tuple[str, Any]) -> None:
    scaffold = tf.train.Scaffold(incremental_save_restore=True)
    with new_graph(), pytest.raises(ConfigurationError, match="given twice"):
        tf.train.CheckpointSaverHook(config_of(tmp_path), scaffold=scaffold, **dict([option]))


@pytest.mark.parametrize("option", SESSION.items(), ids=str)
def test_a_session_refuses_a_second_interval(tmp_path: Path, option: tuple[str, Any]) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match="given twice"):
        tf.train.MonitoredTrainingSession(checkpoint_dir=config_of(tmp_path), **dict([option]))


@pytest.mark.parametrize("option", RUN.items(), ids=str)
def test_a_run_config_refuses_a_second_interval(tmp_path: Path, option: tuple[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="given twice"):
        tf.estimator.RunConfig(model_dir=config_of(tmp_path), **dict([option]))


def test_an_estimator_refuses_a_second_directory_and_a_second_configuration(tmp_path: Path) -> None:
    run_config = tf.estimator.RunConfig(model_dir=config_of(tmp_path))
    with pytest.raises(ConfigurationError, match="the CheckpointConfig says"):
        tf.estimator.Estimator(model_fn, str(tmp_path / "other"), run_config)
    with pytest.raises(ConfigurationError, match="given twice"):
        tf.estimator.Estimator(model_fn, config_of(tmp_path), tf.estimator.RunConfig())


def test_a_hook_with_a_config_needs_a_scaffold_that_records(tmp_path: Path) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match="has no scaffold"):
        tf.train.CheckpointSaverHook(config_of(tmp_path))
    with new_graph(), pytest.raises(ConfigurationError, match="this one does not"):
        tf.train.CheckpointSaverHook(config_of(tmp_path), scaffold=tf.train.Scaffold())


def test_epochs_which_a_session_does_not_know_are_refused(tmp_path: Path) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match="no epochs"):
        tf.train.MonitoredTrainingSession(checkpoint_dir=config_of(tmp_path, epoch_interval=2))


def test_a_saver_that_keeps_another_number_than_the_config_is_refused(tmp_path: Path) -> None:
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        saver = tf.train.Saver(max_to_keep=7, incremental_save_restore=True)
        scaffold = tf.train.Scaffold(saver=saver, incremental_save_restore=True)
        with pytest.raises(ConfigurationError, match="keeps 7 fulls, the CheckpointConfig 3"):
            tf.train.MonitoredTrainingSession(checkpoint_dir=config_of(tmp_path), scaffold=scaffold)


def test_keeping_a_full_every_n_hours_is_refused() -> None:
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        tf.train.Saver(keep_checkpoint_every_n_hours=2)
        with pytest.raises(ConfigurationError, match="keep_checkpoint_every_n_hours is 2"):
            tf.train.Saver(keep_checkpoint_every_n_hours=2, incremental_save_restore=True)
    tf.estimator.RunConfig(keep_checkpoint_every_n_hours=2)
    with pytest.raises(ConfigurationError, match="keep_checkpoint_every_n_hours is 2"):
        tf.estimator.RunConfig(keep_checkpoint_every_n_hours=2, save_incremental_checkpoint_secs=5)


def test_a_session_tells_prometheus_and_tensorboard_when_the_config_says_so(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    config = config_of(tmp_path / "run", metrics_registry=registry, tensorboard_dir=tmp_path / "logs")
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with tf.train.MonitoredTrainingSession(checkpoint_dir=config, log_step_count_steps=None) as session:
            train(session, model, [[1]] * 4)
            told = generate_latest(registry).decode()
    (line,) = [line for line in told.splitlines() if line.startswith("hotdelta_trainer_step{")]
    assert float(line.split()[-1]) >= 3
    assert generate_latest(registry) == b""
    (events,) = (tmp_path / "logs").iterdir()
    steps = [event.step for event in tf.train.summary_iterator(str(events)) if event.summary.value]
    assert steps == steps_of(tmp_path / "run", Kind.DELTA)[-len(steps) :]
