"""tf.train, with incremental checkpoints."""

from __future__ import annotations

from typing import Any

import tensorflow as _tensorflow

from hotdelta.compat.v1.cluster_tasks import Server
from hotdelta.compat.v1.monitored_session import MonitoredTrainingSession
from hotdelta.compat.v1.reading_session import SingularMonitoredSession
from hotdelta.compat.v1.saver import Saver, import_meta_graph
from hotdelta.compat.v1.saver_hook import CheckpointSaverHook, CheckpointSaverListener
from hotdelta.compat.v1.scaffold import Scaffold
from hotdelta.compat.v1.session_creators import ChiefSessionCreator, WorkerSessionCreator
from hotdelta.compat.v1.session_progress import job_progress
from hotdelta.compat.v1.supervisor import Supervisor
from hotdelta.compat.v1.warm_starts import init_from_checkpoint, warm_start

__all__ = [
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "ChiefSessionCreator",
    "MonitoredTrainingSession",
    "Saver",
    "Scaffold",
    "Server",
    "SingularMonitoredSession",
    "Supervisor",
    "WorkerSessionCreator",
    "import_meta_graph",
    "init_from_checkpoint",
    "job_progress",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow.compat.v1.train, name)


def __dir__() -> list[str]:
    return sorted({*dir(_tensorflow.compat.v1.train), *__all__})
