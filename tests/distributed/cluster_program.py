"""The tasks of a TF2 parameter-server cluster, each a fork of one process that has imported TensorFlow and run nothing.

`python -m tests.distributed.cluster_program DIRECTORY` is a program for tests.forks.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.chaos.launched import hand_over
from tests.chaos.seccomp import RENAMES
from tests.distributed.coordinator_program import coordinate
from tests.distributed.job_program import lead, train_along
from tests.distributed.remote_write_program import write_remotely
from tests.forks import serve_forks


def server_file_mode(index: int) -> int:
    return (0o640, 0o600, 0o604)[index]


def serve(cluster: Mapping[str, list[str]], job: str, index: int, calls: str) -> None:
    """A parameter server or a worker, until it is killed. The files that a parameter server makes tell which it is.

    `calls`: where SystemCalls listen before which it renames no file; or nothing.
    """
    if calls:
        hand_over(Path(calls), RENAMES)
    if job == "ps":
        os.umask(0o666 & ~server_file_mode(index))
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index).join()


TASKS: dict[str, Callable[..., None]] = {
    "lead": lead,
    "serve": serve,
    "coordinate": coordinate,
    "train_along": train_along,
    "write_remotely": write_remotely,
}


def _to_the_end(task: Callable[..., None]) -> Callable[..., None]:
    """TensorFlow's own threads may keep a coordinator from ending when a parameter server is gone."""

    def run(**arguments: Any) -> None:
        status = 1
        try:
            task(**arguments)
            status = 0
        except BaseException:  # noqa: BLE001 - the end of the process, whatever it was
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    return run


if __name__ == "__main__":
    serve_forks({name: _to_the_end(task) for name, task in TASKS.items()})
