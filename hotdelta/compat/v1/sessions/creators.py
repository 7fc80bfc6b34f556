"""Session creators, for a MonitoredSession that is made by hand: tasks of a cluster that do not record are noticed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.cluster_tasks import own_task
from hotdelta.compat.v1.graph.saved_variables import is_remote
from hotdelta.compat.v1.recording.hooks import RecordedTaskHook, UnrecordedTaskHook, task_hook
from hotdelta.compat.v1.sessions.scaffold import Scaffold
from hotdelta.tensorflow_internals import master_of, scaffold_of

v1 = tf.compat.v1


class _Creator:
    """Does what the hooks of a MonitoredTrainingSession do when a Session is made; there is none for its end."""

    _hook: RecordedTaskHook | UnrecordedTaskHook | None = None

    def _before_session(self, *, is_chief: bool) -> None:
        is_cluster = any(is_remote(variable.device) for variable in v1.global_variables())
        if is_cluster and self._hook is None:
            self._hook = task_hook(scaffold_of(self), own_task(master_of(self)), is_chief=is_chief)
            self._hook.begin()

    def _after_session(self, session: Any) -> Any:
        if self._hook is not None:
            self._hook.after_create_session(session, None)
        return session


class ChiefSessionCreator(_Creator, tf.compat.v1.train.ChiefSessionCreator):
    """tf.train.ChiefSessionCreator. Its own scaffold restores fulls only, and says so when deltas follow."""

    def __init__(
        self,
        scaffold: Any = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_filename_with_path: str | Path | None = None,
    ) -> None:
        super().__init__(
            scaffold or Scaffold(),
            master,
            config,
            as_text(checkpoint_dir),
            as_text(checkpoint_filename_with_path),
        )

    def create_session(self) -> Any:
        self._before_session(is_chief=True)
        return self._after_session(super().create_session())


class WorkerSessionCreator(_Creator, tf.compat.v1.train.WorkerSessionCreator):
    """tf.train.WorkerSessionCreator. Without an incremental scaffold it is refused where the chief writes deltas."""

    def create_session(self) -> Any:
        """Raises ConfigurationError."""
        self._before_session(is_chief=False)
        return self._after_session(super().create_session())


def as_text(path: str | Path | None) -> str | None:
    return os.fspath(path) if path else None
