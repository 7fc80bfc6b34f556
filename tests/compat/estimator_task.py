"""One task of a cluster of Estimators, which TF_CONFIG tells what it is: all run the same lines."""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

from tensorflow.python.training import monitored_session

import hotdelta.compat.v1 as tf
from tests.compat.graph_mode.small_estimators import batches, estimator_of

MAX_STEPS, WORKER_STEPS = 20, 5
CHIEF_ROWS, WORKER_ROWS = range(25), range(25, 30)
LOOK_SECONDS = 0.2


class WorkerDoneHook(tf.train.SessionRunHook):
    """When a worker has trained all it has, it says so."""

    def __init__(self, done: Path) -> None:
        self._done = done

    def end(self, session: Any) -> None:
        self._done.touch()


class WaitForWorkerHook(tf.train.SessionRunHook):
    """The chief goes no further than its first steps without the worker, and then trains to the end alone."""

    def __init__(self, done: Path) -> None:
        self._done = done
        self._steps = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._steps += 1
        while self._steps == WORKER_STEPS and not self._done.exists():
            time.sleep(0.01)


def run_task(model_dir: str, cluster: dict[str, list[str]], job: str) -> None:
    # A worker of tf.train looks only every 30 seconds whether the chief has initialized the model.
    monitored_session.sm.SessionManager = functools.partial(
        monitored_session.sm.SessionManager, recovery_wait_secs=LOOK_SECONDS
    )
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
    estimator = estimator_of(
        Path(model_dir),
        save_checkpoints_steps=8,
        save_incremental_checkpoint_steps=1,
        experimental_max_worker_delay_secs=0,
    )
    done = Path(model_dir).with_name("worker-done")
    hooks = {"chief": [WaitForWorkerHook(done)], "worker": [WorkerDoneHook(done)]}
    data = batches(WORKER_STEPS, WORKER_ROWS) if job == "worker" else batches(rows=CHIEF_ROWS)
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(data, MAX_STEPS, hooks.get(job)),
        tf.estimator.EvalSpec(batches(6), start_delay_secs=0, throttle_secs=0),
    )
    print(f"evaluated {metrics['global_step'] if metrics else 'nothing'}", flush=True)
