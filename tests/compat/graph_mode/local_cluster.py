"""A cluster whose servers are all in this process: two parameter servers and two workers."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

import hotdelta.compat.v1 as tf
from tests.reserved_ports import SHARING, reserved_ports

PARAMETER_SERVERS = WORKERS = 2


@dataclass(frozen=True)
class LocalCluster:
    spec: Any
    servers: tuple[Any, ...]

    @property
    def target(self) -> str:
        """Of the chief."""
        return self.targets[0]

    @property
    def targets(self) -> list[str]:
        """Of the workers."""
        return [str(server.target) for server in self.servers[PARAMETER_SERVERS:]]

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
    with reserved_ports(PARAMETER_SERVERS + WORKERS) as ports:
        addresses = [f"localhost:{port}" for port in ports]
        spec = tf.train.ClusterSpec(
            {"ps": addresses[:PARAMETER_SERVERS], "worker": addresses[PARAMETER_SERVERS:]}
        )
        jobs = {"ps": PARAMETER_SERVERS, "worker": WORKERS}
        tasks = [(job, index) for job, count in jobs.items() for index in range(count)]
        servers = tuple(tf.train.Server(spec, job_name=job, task_index=index) for job, index in tasks)
    return LocalCluster(spec, servers)
