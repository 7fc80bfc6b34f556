"""The names and the addresses of the tasks of a cluster."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.tensorflow_internals import connected_cluster


def task_of(device: str) -> str:
    """The task that holds a device: all that a log has to say of it."""
    spec = tf.DeviceSpec.from_string(device or "")
    return f"/job:{spec.job or 'localhost'}/task:{spec.task or 0}"


def addresses_in(cluster: Any) -> dict[str, str]:
    """`cluster` is a ClusterDef."""
    return {
        f"/job:{job.name}/task:{index}": str(address)
        for job in cluster.job
        for index, address in sorted(job.tasks.items())
    }


def connected_server(device: str) -> dict[str, str]:
    """The task of a device with its address, empty when this process is connected to no cluster that has it."""
    cluster, task = connected_cluster(), task_of(device)
    return {task: addresses_in(cluster).get(task, "") if cluster else ""}
