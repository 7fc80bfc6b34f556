"""The tasks of a TF2 parameter-server cluster, each a fork of one process that has imported TensorFlow and run nothing.

`python -m tests.distributed.cluster_program` reads one task per line (JSON) and answers with the pid of its process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tests.distributed.coordinator_program import coordinate
from tests.distributed.job_program import lead, train_along


def server_file_mode(index: int) -> int:
    return (0o640, 0o600, 0o604)[index]


def serve(cluster: Mapping[str, list[str]], job: str, index: int) -> None:
    """A parameter server or a worker, until it is killed. The files that a parameter server makes tell which it is."""
    if job == "ps":
        os.umask(0o666 & ~server_file_mode(index))
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index).join()


TASKS: dict[str, Callable[..., None]] = {
    "lead": lead,
    "serve": serve,
    "coordinate": coordinate,
    "train_along": train_along,
}


def _run_to_the_end(task: Callable[..., None], arguments: dict[str, Any]) -> None:
    """TensorFlow's own threads may keep a coordinator from ending when a parameter server is gone."""
    status = 1
    try:
        task(**arguments)
        status = 0
    except BaseException:  # noqa: BLE001 - the end of the process, whatever it was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        task, log, arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            _run_to_the_end(TASKS[task], arguments)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
