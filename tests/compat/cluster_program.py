"""One task of a training cluster: `python -m tests.compat.cluster_program ps|worker INDEX ADDRESSES RUN_DIR`.

ADDRESSES are two parameter servers and two workers. Workers train until RUN_DIR/stop exists. The chief waits for the
other to be quiet, so that its last save holds everything.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import hotdelta.compat.v1 as tf

ROWS = 1000


def main(job: str, index: int, addresses: list[str], run_dir: Path) -> None:
    cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
    device = tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
    with tf.device(device):
        partitioner = tf.fixed_size_partitioner(4)
        table = tf.get_variable("table", [ROWS, 8], partitioner=partitioner)
        ids = tf.placeholder(tf.int64, [None])
        hidden = tf.layers.dense(tf.nn.embedding_lookup(table, ids), 4)
        loss = tf.reduce_mean(tf.square(hidden - 1.0))
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.05).minimize(loss, global_step=step)
    random = np.random.default_rng(index)
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        checkpoint_dir=str(run_dir),
        save_checkpoint_steps=400,
        save_incremental_checkpoint_steps=40,
        save_graph_def=False,
        # Otherwise a Session waits for every task of the cluster, also for the other worker.
        config=tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"]),
    ) as session:
        while not (run_dir / "stop").exists():
            done = session.run([step, train], {ids: random.integers(0, ROWS, 16)})[0]
            (run_dir / f"worker-{index}.step").write_text(str(done))
        (run_dir / f"worker-{index}.quiet").touch()
        while index == 0 and not (run_dir / "worker-1.quiet").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), Path(sys.argv[4]))
