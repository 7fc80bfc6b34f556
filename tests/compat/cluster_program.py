"""One task of a training cluster of two parameter servers and two workers.

Workers train until `run_dir/stop` exists. The chief waits for the other to be quiet, so that its last save holds
everything.
"""

from __future__ import annotations

import functools
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.python.training import monitored_session

import hotdelta.compat.v1 as tf
from exporter.export import ExportOptions
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain
from hotdelta.train import Job

ROWS = 1000
LOOK_SECONDS = 0.5
# So that what else the test starts finds a processor.
PAUSE_SECONDS = 0.01


class Reader:
    """A worker's own place in its data."""

    def __init__(self) -> None:
        self.place = 0

    def read(self, worker: int) -> Any:
        self.place += 1
        return np.random.default_rng([worker, self.place]).integers(0, ROWS, 16)

    def seek(self, place: int) -> None:
        self.place = place


def build() -> tuple[Any, Any, Any]:
    table = tf.get_variable("table", [ROWS, 8], partitioner=tf.fixed_size_partitioner(4))
    ids = tf.placeholder(tf.int64, [None])
    rows = tf.nn.embedding_lookup(table, ids)
    return ids, rows, tf.layers.dense(rows, 4)


def export(run_dir: Path) -> None:
    ids, rows, hidden = build()
    signature = GraphSignature({"ids": ids}, {"rows": rows, "hidden": hidden})
    options = ExportOptions(save_incr_model=True)
    export_chain({"serving_default": signature}, run_dir, run_dir.parent / "export", options)


def run_task(job: str, index: int, addresses: list[str], run_dir: str) -> None:
    """`export` is a job of its own, and no task: it exports to `run_dir/../export`."""
    if job == "export":
        export(Path(run_dir))
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
        # Python ignores it. So a limit on the size of files ends the process in the middle of a write.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        server.join()
    device = tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
    with tf.device(device):
        ids, _, hidden = build()
        loss = tf.reduce_mean(tf.square(hidden - 1.0))
        # A reference variable would lose an addition now and then: two workers add without a lock.
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.05).minimize(loss, global_step=step)
    reader = Reader()
    progress = tf.train.job_progress(run_dir, Job("ranking", index, 2))
    if progress.resumed is not None:
        reader.seek(progress.resumed.registered["reader"])
    (run_dir / f"worker-{index}.resumed").write_text(str(reader.place))
    progress.register_state("reader", lambda: reader.place, reader.seek)
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        checkpoint_dir=str(run_dir),
        save_checkpoint_steps=1_000_000,
        save_incremental_checkpoint_steps=40,
        save_graph_def=False,
        progress=progress,
        # Otherwise a Session waits for every task of the cluster, also for the other worker.
        config=tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"]),
    ) as session:
        while not (run_dir / "stop").exists():
            done = session.run([step, train], {ids: reader.read(index)})[0]
            (run_dir / f"worker-{index}.step").write_text(str(done))
            time.sleep(PAUSE_SECONDS)
        (run_dir / f"worker-{index}.quiet").touch()
        while index == 0 and not (run_dir / "worker-1.quiet").exists():
            time.sleep(0.05)
    (run_dir / f"worker-{index}.place").write_text(str(reader.place))
