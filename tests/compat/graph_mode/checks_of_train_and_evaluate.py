"""`tf.estimator.train_and_evaluate` in one process: when it evaluates what, and what it leaves alone."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any, cast

import pytest

import hotdelta.compat.v1 as tf
from hotdelta import signatures
from hotdelta.chain import Kind
from hotdelta.compat.v1.estimator.evaluation_rounds import (
    EvaluatingListener,
    EvaluationRounds,
    evaluate_continuously,
)
from hotdelta.errors import ConfigurationError
from hotdelta.train.servers.patience import PATIENCE
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_estimators import (
    NotingExporter,
    batches,
    estimator_of,
    eval_spec,
    hooked_model_fn,
    model_fn,
    serving_input,
    train_spec,
)
from tests.compat.graph_mode.small_graphs import assert_same_bits, settle
from tests.reserved_ports import SHARING, reserved_ports


def run(estimator: Any, max_steps: int | None, exporter: Any, **options: Any) -> Any:
    return tf.estimator.train_and_evaluate(
        estimator, train_spec(max_steps, options.pop("count", None)), eval_spec(exporter, **options)
    )


def test_every_full_is_evaluated_as_it_is_and_nothing_else_is_trained_or_recorded(tmp_path: Path) -> None:
    estimator = estimator_of(tmp_path / "model", save_incremental_checkpoint_steps=2)
    exporter = NotingExporter()
    metrics, exports = run(estimator, 6, exporter)
    assert exporter.steps == [4, 6]
    assert [note.is_final for note in exporter.notes] == [False, True]
    assert metrics == exporter.notes[-1].metrics
    assert exports == [str(tmp_path / "model" / "export" / "noting").encode()]
    # Going on from a chain writes no full at first; the next one is of a trained model all the same.
    run(estimator, 11, exporter)
    assert exporter.steps == [4, 6, 10, 11]
    note = exporter.notes[2]
    assert estimator.evaluate(batches(6), checkpoint_path=note.path) == note.metrics

    run_dir = tmp_path / "model"
    deltas = [(delta.step, delta.rows_changed) for delta in manifests(run_dir, Kind.DELTA)]
    # The second of step 6 closes with the full at the end.
    assert deltas == [(2, 10), (4, 10), (6, 10), (6, 0), (8, 10), (10, 10), (11, 5)]
    estimator_of(tmp_path / "alone").train(batches(), max_steps=11)
    alone = tf.train.load_checkpoint(str(tmp_path / "alone"))
    expected = {name: alone.get_tensor(name) for name in alone.get_variable_to_shape_map()}
    oldest = manifests(run_dir, Kind.FULL)[0]
    assert_same_bits(newest_state(run_dir), expected)
    assert_same_bits(state_of(run_dir, oldest, links_after(run_dir, oldest)), expected)


class EvaluatingHook(tf.train.SessionRunHook):
    """An evaluator, in the middle of training, with deltas after the newest full."""

    def __init__(self, rounds: EvaluationRounds, count: int) -> None:
        self._rounds, self._count = rounds, count

    def before_run(self, run_context: Any) -> None:
        settle()
        self._count -= 1
        if self._count == 0:
            self._rounds.run()


def test_an_evaluator_evaluates_and_exports_the_full_and_not_what_follows_it(tmp_path: Path) -> None:
    kinds = {"whole": False, "followed": True}
    exporters = [
        tf.estimator.LatestExporter(name, serving_input, save_incr_model=is_incremental)
        for name, is_incremental in kinds.items()
    ]
    evaluator = estimator_of(tmp_path, hooked_model_fn)
    rounds = EvaluationRounds(evaluator, eval_spec(exporters), 9)
    trainer = estimator_of(tmp_path, save_incremental_checkpoint_steps=2)
    trainer.train(batches(), [EvaluatingHook(rounds, 8)], max_steps=9)
    full = next(each for each in manifests(tmp_path, Kind.FULL) if each.step == 4)
    delta = next(each for each in manifests(tmp_path, Kind.DELTA) if each.step == 6)
    assert rounds.exports is not None
    assert rounds.step == 4
    held = [
        json.loads((Path(path.decode()) / signatures.METADATA_FILE).read_text()) for path in rounds.exports
    ]
    # Servers have to go on from the newest delta.
    assert [each["position"] for each in held] == [str(full.position), str(delta.position)]
    assert [each["save_incr_model"] for each in held] == list(kinds.values())
    assert evaluator.evaluate(batches(6), checkpoint_path=str(tmp_path / full.prefix)) == rounds.metrics
    # Neither of it is recorded.
    deltas = [(each.step, each.rows_changed) for each in manifests(tmp_path, Kind.DELTA)]
    assert deltas == [(2, 10), (4, 10), (6, 10), (8, 10), (9, 5)]


def test_evaluations_are_throttled_but_for_the_last(tmp_path: Path) -> None:
    estimator, exporter = estimator_of(tmp_path, save_checkpoints_steps=2), NotingExporter()
    run(estimator, 7, exporter, throttle_secs=10_000)
    assert exporter.steps == [2, 7]
    assert run(estimator, 7, exporter) == (None, None)
    # The checkpoint that a training starts with, here 7, is not evaluated.
    run(estimator, 8, exporter)
    assert exporter.steps == [2, 7, 8]


def test_a_final_exporter_without_a_final_step_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporter, noting = tf.estimator.FinalExporter("final", serving_input), NotingExporter()
    metrics, exports = run(estimator_of(tmp_path), None, [exporter, noting], count=2)
    assert metrics["global_step"] == 2
    assert exports[0] is None
    assert not noting.notes[-1].is_final
    assert [record.levelno for record in caplog.records if "FinalExporter" in record.message] == [
        logging.WARNING
    ]


def fail_after_the_first_round(seconds: float) -> None:
    assert not seconds


def test_an_incremental_exporter_without_deltas_is_refused_before_the_first_step(tmp_path: Path) -> None:
    exporter = tf.estimator.FinalExporter("final", serving_input, save_incr_model=True)
    estimator = estimator_of(tmp_path)
    with pytest.raises(ConfigurationError, match="nothing incremental to export"):
        run(estimator, 1000, exporter)
    assert estimator.get_variable_value("global_step") == 0
    # An evaluator says so when it sees the first checkpoint.
    spec = eval_spec(exporter, start_delay_secs=0)
    with pytest.raises(ConfigurationError, match="nothing incremental to export"):
        evaluate_continuously(EvaluationRounds(estimator, spec, 1000), spec, wait=fail_after_the_first_round)


def saving_in(*directories: Path) -> Any:
    """A model function with a saving hook for each directory."""

    def saving_model_fn(features: Any, labels: Any, mode: str) -> Any:
        scaffold = tf.train.Scaffold()
        hooks = [tf.train.CheckpointSaverHook(path, save_steps=4, scaffold=scaffold) for path in directories]
        return model_fn(features, labels, mode)._replace(scaffold=scaffold, training_hooks=hooks)

    return saving_model_fn


def test_copies_elsewhere_are_not_taken_for_checkpoints_of_the_model(tmp_path: Path) -> None:
    model_dir, backup, exporter = tmp_path / "model", tmp_path / "backup", NotingExporter()
    run(estimator_of(model_dir, saving_in(backup, model_dir)), 6, exporter)
    assert exporter.steps == [4, 6]
    with pytest.raises(ConfigurationError, match=r"evaluated at step 7.*other has no checkpoint"):
        run(estimator_of(tmp_path / "other", saving_in(backup)), 7, exporter)


def test_a_training_that_saves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing is saved"):
        run(estimator_of(tmp_path, save_checkpoints_steps=None), 1, NotingExporter())


class NotingListener(tf.train.CheckpointSaverListener):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def after_save(self, session: Any, global_step_value: int) -> None:
        self.steps.append(global_step_value)


def test_a_master_evaluates_by_itself_and_calls_listeners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"master": ["a:1"]}, "task": {"type": "master", "index": 0}}'
    )
    exporter, listener = NotingExporter(), NotingListener()
    spec = train_spec(1)._replace(saving_listeners=[listener])
    tf.estimator.train_and_evaluate(estimator_of(tmp_path), spec, eval_spec(exporter))
    assert exporter.steps == [1]
    assert listener.steps == [0, 1]


def test_a_server_that_the_script_has_started_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": fresh_cluster().spec.as_dict(), "task": task}))
    # The first worker is the chief, as there is no other; evaluations are for an evaluator.
    assert run(estimator_of(tmp_path, save_incremental_checkpoint_steps=1), 2, NotingExporter()) == (
        None,
        None,
    )
    assert [full.step for full in manifests(tmp_path, Kind.FULL)] == [0, 2]
    assert "full committed" in caplog.text
    assert "starting a server" not in caplog.text


def test_a_cluster_may_name_its_evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has no server: the Session of a chief, with a configuration of the user, does not wait for it."""
    for name, value in SHARING.items():
        monkeypatch.setenv(name, value)
    with reserved_ports(3) as ports:
        jobs = ("chief", "ps", "evaluator")
        cluster = {job: [f"localhost:{port}"] for job, port in zip(jobs, ports, strict=True)}
        monkeypatch.setenv(
            "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
        )
        estimator = estimator_of(tmp_path, session_config=tf.ConfigProto())
        tf.train.Server(estimator.config.training_cluster_spec, "ps", 0)
        assert run(estimator, 1, NotingExporter()) == (None, None)
    assert estimator.get_variable_value("global_step") == 1


class WaitingRounds:
    """Notes whether this thread is taken for one that waits for servers, while it evaluates."""

    step = -1

    def run(self) -> bool:
        self.step, self.is_waiting = 5, is_waiting()
        return True


def is_waiting() -> bool:
    return threading.current_thread().name in {wait.thread for wait in PATIENCE._waits}


def test_an_evaluation_is_not_taken_for_a_cluster_that_does_not_answer() -> None:
    rounds = WaitingRounds()
    listener = EvaluatingListener(cast(Any, rounds), 0)
    with PATIENCE.waiting_for(dict):
        listener.end(None, 5)
        assert is_waiting()
    assert not rounds.is_waiting


def test_an_evaluator_waits_for_checkpoints_until_the_last_and_changes_nothing(tmp_path: Path) -> None:
    trainer = estimator_of(tmp_path, save_incremental_checkpoint_steps=2)
    evaluator, exporter = estimator_of(tmp_path, hooked_model_fn), NotingExporter()
    waited: list[float] = []
    state_files: list[int] = []

    def wait(seconds: float) -> None:
        """Meanwhile the trainer goes on, now and then."""
        waited.append(round(seconds, -3))
        if len(waited) in (3, 5):
            trainer.train(batches(), max_steps=len(waited))
            state_files.append((tmp_path / "checkpoint").stat().st_ino)

    spec = eval_spec(exporter, start_delay_secs=7000, throttle_secs=100_000)
    evaluate_continuously(EvaluationRounds(evaluator, spec, 5), spec, wait=wait)
    assert exporter.steps == [3, 5]
    assert [note.is_final for note in exporter.notes] == [False, True]
    assert waited == [7000, *[100_000] * 4]
    assert (tmp_path / "checkpoint").stat().st_ino == state_files[-1]


def test_an_evaluator_does_not_look_for_checkpoints_all_the_time(tmp_path: Path) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    spec = eval_spec(NotingExporter(), start_delay_secs=0)
    with pytest.raises(KeyboardInterrupt):
        evaluate_continuously(EvaluationRounds(estimator_of(tmp_path), spec, 5), spec, wait=wait)
    assert waited == [0, 1, 1]
