"""Hooks of those who save nothing: what they write must be recorded all the same, or the chief must know."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.cluster_tasks import tell_lost_tasks
from hotdelta.compat.v1.recording.roll import RecordingRoll
from hotdelta.compat.v1.recording.training_graph import training_graph_of
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1


class RecordingHook(tf.compat.v1.train.SessionRunHook):
    """For workers that have no CheckpointSaverHook: a writer that is fetched by itself brings its recorder along."""

    def before_run(self, run_context: Any) -> Any:
        recorders = fetched_recorders(run_context)
        return v1.train.SessionRunArgs(recorders) if recorders else None


def fetched_recorders(run_context: Any) -> list[tf.Operation]:
    return recorders_of(run_context.session.graph, run_context.original_args.fetches)


def recorders_of(session_graph: Any, fetches: Any) -> list[tf.Operation]:
    """Of the writers that are fetched by themselves."""
    graph = training_graph_of(session_graph)
    if graph is None or not graph.recorders:
        return []
    found = []
    for fetch in _leaves(fetches):
        name = fetch if isinstance(fetch, str) else getattr(fetch, "name", "")
        recorder = graph.recorders.get(str(name).partition(":")[0])
        if recorder is not None:
            found.append(recorder)
    return found


def _leaves(fetches: Any) -> Iterator[Any]:
    """A Session takes dictionaries with any keys, tf.nest only those with keys that can be sorted."""
    if isinstance(fetches, Mapping | list | tuple):
        for each in fetches.values() if isinstance(fetches, Mapping) else fetches:
            yield from _leaves(each)
    else:
        yield from tf.nest.flatten(fetches)


class RecordedTaskHook(tf.compat.v1.train.SessionRunHook):
    """For a task of a cluster that records: it did not, perhaps, before it was started again."""

    def __init__(self, task: str | None) -> None:
        """None: what it was called before is not known."""
        self._task = task

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 - as tf.train has it
        tell_lost_tasks(session)
        graph = training_graph_of(session.graph)
        if self._task is not None and graph is not None and graph.roll is not None:
            graph.roll.strike_off(session, self._task)


class UnrecordedTaskHook(tf.compat.v1.train.SessionRunHook):
    """For a task of a cluster without recorders: raises ConfigurationError when a chief writes deltas.

    They would miss what this task updates. Looks before the first step, and beside each. After the last one the task is
    no longer in anybody's way.
    """

    def __init__(self, task: str | None, *, is_chief: bool) -> None:
        self._task = task or f"a task without a tf.train.Server of hotdelta {uuid.uuid4()}"
        self._is_chief = is_chief

    def begin(self) -> None:
        self._roll = RecordingRoll()

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 - as tf.train has it
        tell_lost_tasks(session)
        if self._is_chief:
            self._roll.deny(session)
        self._roll.enter(session, self._task)
        self._refuse(session, session.run(self._roll.is_chief_recording))

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002 - as tf.train has it
        return v1.train.SessionRunArgs(self._roll.is_chief_recording)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._refuse(run_context.session, run_values.results)

    def end(self, session: Any) -> None:
        self._roll.strike_off(session, self._task)

    def _refuse(self, session: Any, is_chief_recording: int) -> None:
        if is_chief_recording:
            self._roll.strike_off(session, self._task)
            raise ConfigurationError(
                "the chief writes deltas, and this task does not record which rows it changes",
                hint="give every worker the incremental interval, or the incremental scaffold, of the chief",
            )


def task_hook(scaffold: Any, task: str | None, *, is_chief: bool) -> RecordedTaskHook | UnrecordedTaskHook:
    """For a task of a cluster, as its scaffold says."""
    if getattr(scaffold, "incremental_save_restore", False):
        return RecordedTaskHook(task)
    return UnrecordedTaskHook(task, is_chief=is_chief)
