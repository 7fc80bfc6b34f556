"""What `tf.estimator.train_and_evaluate` is given: specs, exporters and TF_CONFIG, and what of it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

import hotdelta.compat.v1 as tf
from hotdelta.compat.v1.estimator.inference import write_summary
from hotdelta.compat.v1.estimator.task_roles import worker_delay_seconds
from hotdelta.errors import ConfigurationError
from tests.compat.graph_mode.small_estimators import FIRST_VERSION, FakeEstimator, NotingExporter


def inputs() -> Any:
    return {}


def larger(best_eval_result: Any, current_eval_result: Any) -> bool:
    return bool(current_eval_result["auc"] > best_eval_result["auc"])


def export(
    exporter: Any, estimator: FakeEstimator, step: int, *, is_final: bool = False, **metrics: float
) -> Any:
    """After an evaluation, which leaves its metrics in an event file."""
    result = {"global_step": step, **metrics}
    write_summary(Path(estimator.model_dir) / "eval", result)
    target = f"{estimator.model_dir}/export/{exporter.name}"
    return exporter.export(estimator, target, f"model.ckpt-{step}", result, is_the_final_export=is_final)


def versions(estimator: FakeEstimator, exporter: Any) -> list[int]:
    found = (Path(estimator.model_dir) / "export" / exporter.name).iterdir()
    return sorted(int(path.name) - FIRST_VERSION for path in found if path.name.isdigit())


@pytest.mark.parametrize(
    "kind, given, message",
    [
        (tf.estimator.TrainSpec, {"input_fn": 3}, "input_fn is 3"),
        (tf.estimator.TrainSpec, {"max_steps": 0}, "max_steps is 0.*at least 1"),
        (tf.estimator.TrainSpec, {"hooks": [inputs]}, "hooks has .*SessionRunHook"),
        (tf.estimator.TrainSpec, {"saving_listeners": [inputs]}, "listeners has .*CheckpointSaverListener"),
        (tf.estimator.EvalSpec, {"input_fn": None}, "input_fn is None"),
        (tf.estimator.EvalSpec, {"steps": 0}, "steps is 0.*at least 1"),
        (tf.estimator.EvalSpec, {"steps": "ten"}, "steps is 'ten'.*at least 1"),
        (tf.estimator.EvalSpec, {"name": 3}, "name is 3"),
        (tf.estimator.EvalSpec, {"hooks": [inputs]}, "hooks has .*SessionRunHook"),
        (tf.estimator.EvalSpec, {"start_delay_secs": -1}, "start_delay_secs is -1.*at least 0"),
        (tf.estimator.EvalSpec, {"throttle_secs": float("nan")}, "throttle_secs is nan.*at least 0"),
        (tf.estimator.EvalSpec, {"exporters": [inputs]}, "exporters has .*tf.estimator.Exporter"),
        (tf.estimator.EvalSpec, {"exporters": [NotingExporter(), NotingExporter()]}, "no two the same"),
        (tf.estimator.EvalSpec, {"exporters": NotingExporter("")}, "give each a name"),
        (tf.estimator.FinalExporter, {"as_text": True}, "as_text"),
        (tf.estimator.FinalExporter, {"assets_extra": {"words": "file"}}, "assets_extra"),
        (tf.estimator.LatestExporter, {"exports_to_keep": 0}, "exports_to_keep is 0.*at least 1"),
        (tf.estimator.BestExporter, {"exports_to_keep": 0}, "exports_to_keep is 0.*at least 1"),
        (tf.estimator.BestExporter, {"serving_input_receiver_fn": None}, "receiver_fn is None"),
        (tf.estimator.BestExporter, {"compare_fn": None}, "best_eval_result and current_eval_result"),
        (tf.estimator.BestExporter, {"compare_fn": lambda best, current: True}, "best_eval_result and"),
    ],
)
def test_what_could_not_work_is_refused_when_it_is_given(kind: Any, given: Any, message: str) -> None:
    is_spec = kind in (tf.estimator.TrainSpec, tf.estimator.EvalSpec)
    needed = {"input_fn": inputs} if is_spec else {"name": "final", "serving_input_receiver_fn": inputs}
    with pytest.raises(ConfigurationError, match=message):
        kind(**{**needed, **given})


def test_specs_have_the_classic_defaults_and_are_replaced_as_a_namedtuple_is() -> None:
    train, evaluate = tf.estimator.TrainSpec(inputs), tf.estimator.EvalSpec(inputs)
    assert (train.max_steps, train.hooks, train.saving_listeners) == (None, (), ())
    assert (evaluate.steps, evaluate.start_delay_secs, evaluate.throttle_secs) == (100, 120, 600)
    assert train._replace(max_steps=1).max_steps == 1
    assert evaluate._replace(start_delay_secs=0, throttle_secs=0).throttle_secs == 0
    exporter = NotingExporter()
    assert evaluate._replace(exporters=exporter).exporters == (exporter,)
    with pytest.raises(ConfigurationError, match=r"estimator is 3.*tf.estimator.Estimator"):
        tf.estimator.train_and_evaluate(cast(Any, 3), train, evaluate)


def test_a_final_exporter_exports_once(tmp_path: Path) -> None:
    exporter, estimator = tf.estimator.FinalExporter("final", inputs), FakeEstimator(tmp_path)
    assert export(exporter, estimator, 1) is None
    assert export(exporter, estimator, 2, is_final=True) is not None
    (asked,) = estimator.asked
    assert asked["checkpoint_path"] == "model.ckpt-2"
    assert asked["receiver"] is inputs
    assert not asked["save_incr_model"]
    # What servers can go on from by deltas is the newest state.
    incremental = tf.estimator.FinalExporter("incremental", inputs, save_incr_model=True)
    export(incremental, estimator, 3, is_final=True)
    assert estimator.asked[-1]["checkpoint_path"] is None
    assert estimator.asked[-1]["save_incr_model"]


def test_a_latest_exporter_keeps_the_newest_exports_and_what_is_not_one(tmp_path: Path) -> None:
    exporter, estimator = (
        tf.estimator.LatestExporter("latest", inputs, exports_to_keep=2),
        FakeEstimator(tmp_path),
    )
    kept = tmp_path / "export" / "latest" / "notes"
    kept.mkdir(parents=True)
    assert all(export(exporter, estimator, step) for step in range(4))
    assert versions(estimator, exporter) == [3, 4]
    assert kept.exists()
    everything = tf.estimator.LatestExporter("everything", inputs, exports_to_keep=None)
    assert all(export(everything, estimator, step) for step in range(3))
    assert len(versions(estimator, everything)) == 3


def test_a_best_exporter_exports_what_is_better_than_everything_before_also_before_a_restart(
    tmp_path: Path,
) -> None:
    estimator = FakeEstimator(tmp_path)

    def exported(exporter: Any, steps: int, *losses: float) -> list[bool]:
        return [
            export(exporter, estimator, steps + i, loss=loss) is not None for i, loss in enumerate(losses)
        ]

    exporter = tf.estimator.BestExporter("best", inputs, exports_to_keep=1)
    assert exported(exporter, 1, 3.0, 4.0, 2.0, 2.0) == [True, False, True, False]
    assert versions(estimator, exporter) == [2]
    restarted = tf.estimator.BestExporter("best", inputs, exports_to_keep=1)
    (events,) = (tmp_path / "eval").iterdir()
    (tmp_path / "eval" / "events.out.tfevents.0.killed").write_bytes(events.read_bytes()[:-1])
    assert exported(restarted, 5, 2.5, 1.0) == [False, True]
    forgetful = tf.estimator.BestExporter("best", inputs, event_file_pattern=None)
    assert exported(forgetful, 7, 2.5, 2.6) == [True, False]
    by_auc = tf.estimator.BestExporter("auc", inputs, None, larger)
    assert [bool(export(by_auc, estimator, 9 + i, auc=auc)) for i, auc in enumerate((0.5, 0.4, 0.6))] == [
        True,
        False,
        True,
    ]


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def config_of(monkeypatch: pytest.MonkeyPatch, cluster: Any, job: str, index: int = 0) -> Any:
    task = {"type": job, "index": index} if job else {}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    return tf.estimator.RunConfig()


@pytest.mark.parametrize(
    "cluster, job, index, message",
    [
        (CLUSTER, "", 0, "count"),
        (CLUSTER, "worker", 2, "count"),
        (CLUSTER, "worker", -1, "count"),
        (CLUSTER, "master", 0, "count"),
        (CLUSTER, "evaluator", 1, "one evaluator at most"),
        ({**CLUSTER, "chief": ["a:1", "b:1"]}, "chief", 0, "one chief"),
        ({**CLUSTER, "boss": ["a:2"]}, "boss", 0, "one chief"),
        ({"chief": ["a:1"], "worker": ["b:1"]}, "chief", 0, "no ps"),
    ],
)
def test_a_cluster_that_could_not_train_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cluster: Any, job: str, index: int, message: str
) -> None:
    config = config_of(monkeypatch, cluster, job, index)
    estimator = tf.estimator.Estimator(lambda features: None, str(tmp_path), config)
    with pytest.raises(ConfigurationError, match=message):
        tf.estimator.train_and_evaluate(
            estimator, tf.estimator.TrainSpec(inputs), tf.estimator.EvalSpec(inputs)
        )


def test_there_is_one_chief_and_a_task_alone_needs_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def chiefs(cluster: Any) -> list[tuple[str, int]]:
        tasks = [(job, index) for job, addresses in cluster.items() for index in range(len(addresses))]
        tasks.append(("evaluator", 0))
        return [task for task in tasks if config_of(monkeypatch, cluster, *task).is_chief]

    headless = {"worker": ["b:1", "c:1"], "ps": ["d:1"]}
    assert chiefs(CLUSTER) == [("chief", 0)]
    assert chiefs(headless) == [("worker", 0)]
    assert chiefs({**headless, "master": ["a:1"]}) == [("master", 0)]
    assert config_of(monkeypatch, headless, "worker").num_worker_replicas == 2
    assert config_of(monkeypatch, CLUSTER, "worker", 1).master == "grpc://c:1"
    assert config_of(monkeypatch, {"chief": ["a:1"], "evaluator": ["e:1"]}, "chief").master == ""


def test_workers_begin_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = {**CLUSTER, "worker": [f"b:{port}" for port in range(20)]}
    workers = [config_of(monkeypatch, crowd, "worker", index) for index in (0, 1, 19)]
    assert [worker_delay_seconds(config) for config in workers] == [5, 10, 60]
    hurried = [config.replace(experimental_max_worker_delay_secs=7) for config in workers]
    assert [worker_delay_seconds(config) for config in hurried] == [5, 7, 7]
