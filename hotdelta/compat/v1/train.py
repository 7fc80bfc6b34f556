"""tf.train, with incremental checkpoints."""

from __future__ import annotations

from typing import Any

import tensorflow as _tensorflow

from hotdelta.compat.v1.chain.session_progress import job_progress, latest_bookmark
from hotdelta.compat.v1.deeprec.adagrad_decay import AdagradDecayOptimizer
from hotdelta.compat.v1.deeprec.adam_async import AdamAsyncOptimizer
from hotdelta.compat.v1.deeprec.stages import mark_target_node
from hotdelta.compat.v1.embedding.optimizers import AdamOptimizer
from hotdelta.compat.v1.graph.cluster_tasks import Server
from hotdelta.compat.v1.recording.step_marks import bookmark
from hotdelta.compat.v1.restore.warm_starts import init_from_checkpoint, warm_start
from hotdelta.compat.v1.sessions.creators import ChiefSessionCreator, WorkerSessionCreator
from hotdelta.compat.v1.sessions.monitored_session import MonitoredTrainingSession
from hotdelta.compat.v1.sessions.reading_session import SingularMonitoredSession, latest_checkpoint
from hotdelta.compat.v1.sessions.saver import Saver, import_meta_graph
from hotdelta.compat.v1.sessions.saver_hook import CheckpointSaverHook, CheckpointSaverListener
from hotdelta.compat.v1.sessions.scaffold import Scaffold
from hotdelta.compat.v1.sessions.supervisor import Supervisor

# In DeepRec they differ in the shape of a slot; here both have that of the second.
AdagradDecayOptimizerV2 = AdagradDecayOptimizer

__all__ = [
    "AdagradDecayOptimizer",
    "AdagradDecayOptimizerV2",
    "AdamAsyncOptimizer",
    "AdamOptimizer",
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
    "bookmark",
    "import_meta_graph",
    "init_from_checkpoint",
    "job_progress",
    "latest_bookmark",
    "latest_checkpoint",
    "mark_target_node",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow.compat.v1.train, name)


def __dir__() -> list[str]:
    return sorted({*dir(_tensorflow.compat.v1.train), *__all__})
