"""Hooks of workers that save nothing: what they write must be recorded all the same."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.recording import SCOPE
from hotdelta.compat.v1.training_graph import MARKER_STEM, training_graph_of
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1


class RecordingHook(tf.compat.v1.train.SessionRunHook):
    """For workers that have no CheckpointSaverHook: a writer that is fetched by itself brings its recorder along."""

    def before_run(self, run_context: Any) -> Any:
        recorders = fetched_recorders(run_context)
        return v1.train.SessionRunArgs(recorders) if recorders else None


def fetched_recorders(run_context: Any) -> list[tf.Operation]:
    graph = training_graph_of(run_context.session.graph)
    if graph is None or not graph.recorders:
        return []
    found = []
    for fetch in tf.nest.flatten(run_context.original_args.fetches):
        name = fetch if isinstance(fetch, str) else getattr(fetch, "name", "")
        recorder = graph.recorders.get(str(name).partition(":")[0])
        if recorder is not None:
            found.append(recorder)
    return found


class UnrecordedWorkerHook(tf.compat.v1.train.SessionRunHook):
    """For a worker without recorders: raises ConfigurationError when its chief writes deltas, which would miss updates.

    The chief's graph has a variable beside the first one of the model that no other graph makes.
    """

    def begin(self) -> None:
        with tf.device(v1.global_variables()[0].device):
            name = f"{SCOPE}/{MARKER_STEM}0"
            marker = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=name)
            self._is_chief_recording = tf.raw_ops.VarIsInitializedOp(resource=marker)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 - as tf.train has it
        if session.run(self._is_chief_recording):
            raise ConfigurationError(
                "the chief writes deltas, and this worker does not record which rows it changes",
                hint="give every worker the incremental interval, or the incremental scaffold, of the chief",
            )
