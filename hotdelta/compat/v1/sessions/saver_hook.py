"""`tf.train.CheckpointSaverHook` that writes fulls and, between them, deltas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.format.manifest import Manifest
from hotdelta.compat.v1.chain.save_schedule import SaveSchedule, find_schedule, refuse_chain
from hotdelta.compat.v1.chain.session_chain import SessionChain
from hotdelta.compat.v1.chain.session_progress import ChiefProgress, check_progress
from hotdelta.compat.v1.recording.hooks import fetched_recorders
from hotdelta.compat.v1.recording.training_graph import TrainingGraph, training_graph_of
from hotdelta.compat.v1.sessions.saver import Saver
from hotdelta.compat.v1.sessions.scaffold import Scaffold, require_incremental
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import OpenSaverHook
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.save.schedule import SaveEvery

v1 = tf.compat.v1


class CheckpointSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """tf.train.CheckpointSaverListener: `before_save` and `after_save` are about fulls, these two about deltas."""

    def before_incremental_save(self, session: Any, global_step_value: int) -> None:
        pass

    def after_incremental_save(self, session: Any, global_step_value: int) -> bool | None:
        """Called when a delta was committed, at the end of a later step. Return True to stop training."""


class CheckpointSaverHook(OpenSaverHook):
    """tf.train.CheckpointSaverHook; with `incremental_save_secs` or `incremental_save_steps` it writes a chain.

    A CheckpointConfig in place of the directory says both where and when to save. Only the chief has one. A full is
    written at the start when there is nothing to go on from, and at the end.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path | CheckpointConfig,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Any = None,
        save_graph_def: bool = True,
        *,
        incremental_save_secs: float | None = None,
        incremental_save_steps: int | None = None,
        progress: ChiefProgress | None = None,
    ) -> None:
        """`progress`: what tf.train.job_progress made for the chief; the workers of its job are in every commit."""
        schedule = find_schedule(
            checkpoint_dir,
            full=(save_secs, save_steps),
            delta=(incremental_save_secs, incremental_save_steps),
        )
        if schedule is not None:
            _check_configuration(schedule, scaffold, checkpoint_basename)
            scaffold.chain_dir = schedule.run_dir
        elif getattr(scaffold, "incremental_save_restore", False):
            raise ConfigurationError(
                "the scaffold records for deltas, but its CheckpointSaverHook has no interval for them",
                hint="pass incremental_save_secs or incremental_save_steps, too",
            )
        is_config = isinstance(checkpoint_dir, CheckpointConfig)
        super().__init__(
            str(schedule.run_dir if schedule else checkpoint_dir),
            save_secs=save_secs,
            # tf.train wants an interval; our own take its place.
            save_steps=1 if is_config else save_steps,
            saver=saver,
            checkpoint_basename=checkpoint_basename,
            scaffold=scaffold,
            listeners=listeners,
            save_graph_def=save_graph_def,
        )
        if progress is not None:
            require_chain_for_progress(schedule)
            check_progress(progress, is_chief=True)
        self._progress = progress
        self._schedule = schedule
        self._chain: SessionChain | None = None
        self._saved_step = -1

    def begin(self) -> None:
        if self._schedule is None:
            refuse_chain(self.checkpoint_dir)
        super().begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._schedule is None:
            super().after_create_session(session, coord)
            return
        if self._chain is None:
            self._chain = self._new_chain(session, self._schedule)
        self._chain.pauses.stop()
        super().after_create_session(session, coord)
        self._chain.pauses.start()

    def before_run(self, run_context: Any) -> Any:
        """Whoever fetches a writer by itself gets its recorder, too."""
        recorders = fetched_recorders(run_context)
        arguments = super().before_run(run_context)
        feeds = self._chain.watch.enter() if self._chain is not None else None
        return v1.train.SessionRunArgs([arguments.fetches, recorders], feeds)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        stale_step = run_values.results[0]
        if self._chain is None:
            super().after_run(run_context, v1.train.SessionRunValues(stale_step, None, None))
            return
        session = run_context.session
        may_be_due = self._chain.note_run(int(stale_step) + self.steps_per_run)
        if self._tell(session, self._chain):
            run_context.request_stop()
        is_full_due = may_be_due and self._chain.save_after_run()
        if is_full_due and self.save(session, self._chain.find_place().step):
            run_context.request_stop()

    def end(self, session: Any) -> None:
        """Raises UnsavedError when the last save is not on disk, UnpublishedError when it is not in the store."""
        if self._chain is None:
            super().end(session)
            return
        self._chain.pauses.stop()
        step = session.run(self.step_tensor)
        self._tell_of_all(session, self._chain)
        if step != self._saved_step:
            self.save(session, step)
        else:
            # An operation that counts no step may have written since the last step was saved.
            self._chain.write_delta()
            self._tell(session, self._chain)
        for listener in self.listeners:
            listener.end(session, step)
        _prepared(session).end_recording(session)
        chain, self._chain = self._chain, None
        try:
            chain.close()
        finally:
            chain.require_saved()

    def _new_chain(self, session: Any, schedule: SaveSchedule) -> SessionChain:
        saver: Saver = self.find_saver()
        return SessionChain(
            _prepared(session),
            schedule.run_dir,
            options=schedule.options(saver.keep_fulls),
            step_tensor=self.step_tensor,
            meta_graph=saver.meta_graph if self.saves_graph else None,
            progress=self._progress,
            before_delta=self._tell_of_delta,
        )

    def save(self, session: Any, step: int) -> bool:
        """Called by tf.train's own hook, for the first checkpoint of a Session and for those that are due.

        Returns whether a listener wants training to stop.
        """
        if self._chain is None:
            return super().save(session, step)
        is_first = not self._chain.is_started_for(session)
        is_stop_wanted = not is_first and self._tell_of_all(session, self._chain)
        for listener in self.listeners:
            listener.before_save(session, step)
        manifest = self._chain.start(session) if is_first else self._chain.write_full()
        if manifest is None:
            self._saved_step = step if is_first else self._saved_step
            return is_stop_wanted
        self._note(manifest)
        wishes = [listener.after_save(session, step) for listener in self.listeners]
        return is_stop_wanted or any(wishes)

    def _tell_of_delta(self, session: Any, step: int) -> None:
        for listener in self._delta_listeners():
            listener.before_incremental_save(session, step)

    def _tell(self, session: Any, chain: SessionChain) -> bool:
        """Of the deltas that were committed. Returns whether a listener wants training to stop."""
        wishes = [
            listener.after_incremental_save(session, manifest.step)
            for manifest in chain.take_committed()
            for listener in self._delta_listeners()
        ]
        return any(wishes)

    def _tell_of_all(self, session: Any, chain: SessionChain) -> bool:
        """As `_tell`, with the one that is being written."""
        chain.wait()
        return self._tell(session, chain)

    def _delta_listeners(self) -> list[Any]:
        """Listeners of stock TensorFlow know only full checkpoints."""
        return [listener for listener in self.listeners if hasattr(listener, "after_incremental_save")]

    def _note(self, manifest: Manifest) -> None:
        self._saved_step = manifest.step
        path = str(Path(self.checkpoint_dir) / manifest.prefix)
        log = v1.SessionLog(status=v1.SessionLog.CHECKPOINT, checkpoint_path=path)
        self.summary_writer.add_session_log(log, manifest.step)


def _prepared(session: Any) -> TrainingGraph:
    graph = training_graph_of(session.graph)
    if graph is None:
        raise ConfigurationError(
            "the graph was finalized without recorders, so no delta could be written",
            hint="give the Session the same incremental scaffold as the hook",
        )
    return graph


def _check_configuration(schedule: SaveSchedule, scaffold: Any, basename: str) -> None:
    if scaffold is None:
        raise ConfigurationError(
            "a CheckpointSaverHook that writes deltas has no scaffold, so nothing records for it",
            hint="pass scaffold=tf.train.Scaffold(incremental_save_restore=True), the one of the Session",
        )
    require_incremental_scaffold(scaffold)
    if schedule.full == SaveEvery():
        raise ConfigurationError(
            "an incremental interval without an interval for full checkpoints: deltas need a full to follow",
            hint="pass save_secs or save_steps, too",
        )
    if basename != "model.ckpt":
        raise ConfigurationError(
            f"fulls of a chain are called model.ckpt, not {basename!r}", hint="leave checkpoint_basename out"
        )


def require_chain_for_progress(schedule: SaveSchedule | None) -> None:
    if schedule is None:
        raise ConfigurationError(
            "the progress of workers is saved with deltas, and no interval for deltas is given",
            hint="pass the incremental interval, too, or leave progress out",
        )


def require_incremental_scaffold(scaffold: Any) -> None:
    if not isinstance(scaffold, Scaffold) or not scaffold.incremental_save_restore:
        raise ConfigurationError(
            "an incremental interval needs a scaffold that records, and this one does not",
            hint="make it with tf.train.Scaffold(saver=..., incremental_save_restore=True)",
        )
    if scaffold.saver is not None:
        require_incremental(scaffold.saver)
