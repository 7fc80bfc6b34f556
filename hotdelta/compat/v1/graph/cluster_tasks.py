"""`tf.train.Server`, and what it knows of its cluster: a Session tells neither the addresses nor its own task."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.saved_variables import is_remote
from hotdelta.compat.v1.graph.session_config import say_without_effect, stock_config
from hotdelta.tensorflow_internals import UNBOUNDED_BYTES, allow_reserving
from hotdelta.train.servers.addresses import addresses_in, task_of

# Of DeepRec. All tasks of a cluster run one script, so all of them come here.
_FASTER_PROTOCOLS = ("grpc++", "star_server")

# What TensorFlow says of each task that a step failed on, in the message of what it raises for all of them.
_LOST_TASK = re.compile(r"^(ABORTED|UNAVAILABLE): From /job:", re.MULTILINE)

_server_defs: dict[str, Any] = {}


class Server(tf.distribute.Server):
    """tf.train.Server. Its cluster is remembered for the Sessions of this process that it is the master of."""

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        if protocol in _FASTER_PROTOCOLS:
            say_without_effect(f"protocol={protocol}")
            protocol = "grpc"
        if job_name == "ps":
            # Workers reserve memory here, and this process does not know how much.
            allow_reserving(UNBOUNDED_BYTES)
        super().__init__(server_or_cluster_def, job_name, task_index, protocol, stock_config(config), start)
        definition = self.server_def
        own = addresses_in(definition.cluster).get(_own_task(definition), "")
        # An Estimator knows its master by the address in TF_CONFIG.
        _server_defs.update({self.target: definition, f"grpc://{own}": definition})

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Any:
        return tf.distribute.Server.create_local_server(stock_config(config), start)


def own_task(master: str) -> str | None:
    """None when no Server of this process is this master."""
    definition = _server_defs.get(master)
    return _own_task(definition) if definition is not None else None


def awaited_servers(master: str, config: Any, variables: Iterable[Any]) -> dict[str, str]:
    """The tasks that a Session waits for, with their addresses; empty when no other process holds a variable.

    TensorFlow waits for the whole cluster, or for those that the device filters of the Session's config leave. Where
    the cluster is not known they are those that hold variables, without addresses.
    """
    holding = sorted({task_of(each.device) for each in variables if is_remote(each.device)})
    definition = _server_defs.get(master)
    if not holding or definition is None:
        return dict.fromkeys(holding, "")
    filters = [tf.DeviceSpec.from_string(text) for text in (config.device_filters if config else ())]
    return {
        task: address
        for task, address in addresses_in(definition.cluster).items()
        if not filters or any(_is_left(task, each) for each in filters)
    }


def tell_lost_tasks(session: Any) -> None:
    """From now on `run` of this Session raises AbortedError for every step that a task which was lost has ended.

    TensorFlow raises one error for all tasks. The others were waiting for the one that was lost, perhaps in a function,
    as look-ups by keys are; then it is a CancelledError, and a MonitoredSession, which goes on after an AbortedError,
    would end.
    """
    run = session.run

    def run_and_tell(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except tf.errors.CancelledError as error:
            if _LOST_TASK.search(error.message) is None:
                raise
            raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error

    session.run = run_and_tell


def _own_task(definition: Any) -> str:
    return f"/job:{definition.job_name}/task:{definition.task_index}"


def _is_left(task: str, device_filter: Any) -> bool:
    spec = tf.DeviceSpec.from_string(task)
    return device_filter.job in (None, spec.job) and device_filter.task in (None, spec.task)
