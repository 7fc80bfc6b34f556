"""A task that writes variables which a parameter server holds, while that server stands still."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from hotdelta.train.servers import patience as server_patience
from hotdelta.train.tables.row_values import read_whole, write_whole
from tests.distributed.cluster import halt
from tests.distributed.reports import say

VALUES = np.arange(12, dtype=np.float32).reshape(6, 2)


def write_remotely(
    cluster: Mapping[str, list[str]], server_pid: int, is_sharded: bool, slow_seconds: float, report: str
) -> None:
    """Stops the server; says what it holds when the write is over."""
    logging.basicConfig(level=logging.INFO)
    server_patience.SLOW_SECONDS = slow_seconds
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), "chief", 0)
    with tf.device("/job:ps/task:0/device:CPU:0"):
        variable = tf.Variable(tf.zeros([6, 2]))
        shards = [tf.Variable(tf.zeros([3, 2])) for _ in range(2)]
    written = ShardedVariable(shards) if is_sharded else variable
    read_whole(written)
    say(report, "connected", True)
    halt(server_pid)
    write_whole(written, VALUES)
    say(report, "written", read_whole(written).tolist())
