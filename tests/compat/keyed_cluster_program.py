"""One task of a cluster of two parameter servers and two workers, which train an embedding variable in two parts.

Workers train until `run_dir/stop` exists. The second one makes no step while `run_dir/hold` does, which has a number,
and says so in `held-<number>`. The chief writes down what it is answered when a Session of it begins, before it trains
(not while there is a hold), and after its last save, when the other worker is quiet.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.python.training import monitored_session

import hotdelta.compat.v1 as tf
from exporter.export import ExportOptions
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain
from tests.compat.cluster_of_processes import ASKED
from tests.compat.cluster_program import LOOK_SECONDS, PAUSE_SECONDS

# New keys come all the time: each is in the batches of some steps.
WINDOW = 400
POLL_SECONDS = 0.02


def batch(worker: int, place: int) -> np.ndarray:
    return np.random.default_rng([worker, place]).integers(0, WINDOW, 16) + place - WINDOW // 2


def build() -> tuple[Any, Any, Any]:
    option = tf.EmbeddingVariableOption(
        filter_option=tf.CounterFilter(2), evict_option=tf.GlobalStepEvict(100), max_rows=20_000
    )
    variable = tf.get_embedding_variable(
        "table", 8, partitioner=tf.fixed_size_partitioner(2), ev_option=option
    )
    ids = tf.placeholder(tf.int64, [None])
    return variable, ids, tf.nn.embedding_lookup(variable, ids)


class WrittenAnswers(tf.train.SessionRunHook):
    """As `answers-N.npz`, whenever a Session begins."""

    def __init__(self, run_dir: Path, asked: dict[str, Any], ids: Any) -> None:
        self._run_dir, self._asked, self._ids = run_dir, asked, ids

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.write(session)
        while (self._run_dir / "hold").exists():
            time.sleep(POLL_SECONDS)

    def write(self, session: Any) -> None:
        answers = session.run(self._asked, {self._ids: ASKED})
        number = len(list(self._run_dir.glob("answers-*.npz")))
        path = self._run_dir / f"answers-{number}.npz"
        np.savez(self._run_dir / "answers.new.npz", **answers)
        (self._run_dir / "answers.new.npz").rename(path)


def run_task(job: str, index: int, addresses: list[str], run_dir: str) -> None:
    """`export` is a job of its own, and no task: it exports to `run_dir/../export`."""
    if job == "export":
        _, ids, rows = build()
        options = ExportOptions(save_incr_model=True)
        signatures = {"serving_default": GraphSignature({"ids": ids}, {"rows": rows})}
        export_chain(signatures, Path(run_dir), Path(run_dir).parent / "export", options)
    else:
        train(job, index, addresses, Path(run_dir))


def train(job: str, index: int, addresses: list[str], run_dir: Path) -> None:
    # A worker of tf.train looks only every 30 seconds whether the chief has restored the model.
    monitored_session.sm.SessionManager = functools.partial(
        monitored_session.sm.SessionManager, recovery_wait_secs=LOOK_SECONDS
    )
    cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
    with tf.device(
        tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
    ):
        variable, ids, rows = build()
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            step = tf.train.get_or_create_global_step()
        loss = tf.reduce_mean(tf.square(rows - 1.0))
        train = tf.train.AdagradOptimizer(0.05).minimize(loss, global_step=step)
        keys, _, _, seen = variable.export()
        asked = {"step": step, "rows": rows, "keys": keys, "seen": seen}
    # Otherwise a Session waits for every task of the cluster, also for the other worker.
    config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    answers = WrittenAnswers(run_dir, asked, ids)
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        checkpoint_dir=str(run_dir),
        chief_only_hooks=[answers],
        save_checkpoint_steps=1_000_000,
        save_incremental_checkpoint_steps=40,
        save_graph_def=False,
        config=config,
    ) as session:
        place = 0
        while not (run_dir / "stop").exists():
            if index == 1 and (hold := number_in(run_dir / "hold")):
                (run_dir / f"held-{hold}").touch()
                time.sleep(POLL_SECONDS)
                continue
            place += 1
            done = session.run([step, train], {ids: batch(index, place)})[0]
            (run_dir / f"worker-{index}.step").write_text(str(done))
            time.sleep(PAUSE_SECONDS)
        (run_dir / f"worker-{index}.quiet").touch()
        while index == 0 and not (run_dir / "worker-1.quiet").exists():
            time.sleep(POLL_SECONDS)
    if index == 0:
        with tf.Session(server.target, config=config) as session:
            answers.write(session)


def number_in(path: Path) -> str:
    """Empty: it is not there, or being written."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
