"""A cluster whose servers are all in this process: two parameter servers and a worker."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

import hotdelta.compat.v1 as tf
from tests.reserved_ports import SHARING, reserved_ports

PARAMETER_SERVERS = 2


@dataclass(frozen=True)
class LocalCluster:
    spec: Any
    servers: tuple[Any, ...]

    @property
    def target(self) -> str:
        return str(self.servers[-1].target)

    def device(self) -> Any:
        """Variables are dealt out to the parameter servers, one after the other."""
        return tf.device(
            tf.train.replica_device_setter(cluster=self.spec, worker_device="/job:worker/task:0")
        )

    def forget(self) -> None:
        """As if every server had been started again."""
        tf.Session.reset(self.target)


def fresh_cluster() -> LocalCluster:
    cluster = _cluster()
    cluster.forget()
    return cluster


@functools.cache
def _cluster() -> LocalCluster:
    """One for the process: a server of TensorFlow cannot be stopped."""
    os.environ.update(SHARING)
    with reserved_ports(PARAMETER_SERVERS + 1) as ports:
        addresses = [f"localhost:{port}" for port in ports]
        spec = tf.train.ClusterSpec(
            {"ps": addresses[:PARAMETER_SERVERS], "worker": addresses[PARAMETER_SERVERS:]}
        )
        tasks = [*(("ps", index) for index in range(PARAMETER_SERVERS)), ("worker", 0)]
        servers = tuple(tf.train.Server(spec, job_name=job, task_index=index) for job, index in tasks)
    return LocalCluster(spec, servers)
