"""One training Session's chain: takes the directory, continues from what was restored, and reads what is saved."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.history.verification import directory_of
from hotdelta.compat.v1.chain import open_chains
from hotdelta.compat.v1.chain.run_watch import RunWatch
from hotdelta.compat.v1.chain.session_cut import SessionCuts
from hotdelta.compat.v1.chain.session_progress import ChiefProgress, Place, PlaceReader
from hotdelta.compat.v1.chain.shard_cut import ShardCuts
from hotdelta.compat.v1.recording.full_bundle import META_SUFFIX, add_file
from hotdelta.compat.v1.recording.training_graph import TrainingGraph
from hotdelta.compat.v1.restore.restoring import (
    as_invalid_argument,
    lies_as_saved,
    restored_state,
    saved_rows,
    saved_values,
)
from hotdelta.errors import CommitError, ConfigurationError, DirectoryBusyError
from hotdelta.logs import event
from hotdelta.tensorflow_internals import is_closed
from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.background import CallersWorker
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.engine import SaveEngine, locked
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.pauses import Quiet, TrainedBatch
from hotdelta.train.serving.files import save_schema
from hotdelta.train.tables.key_upkeep import Moment
from hotdelta.train.tables.row_values import Array
from hotdelta.train.trainer_progress import progress_at

logger = logging.getLogger(__name__)

# How often the steps of other workers are looked at while the chief makes none.
LOOK_SECONDS = 0.25


class SessionChain(SaveEngine):
    """Saves what the Sessions of one chief change.

    Nobody stops the workers of a cluster for a cut: it may fall between the count of a step and the record of its rows
    (`_is_cut_in_steps`). When no step follows, one more cut does, until one is empty, or has all rows because of a task
    that does not record.

    Fulls are written by the thread that trains, as with tf.train.Saver. A save that fails is logged and its rows are
    due again; the first one raises.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        run_dir: Path,
        *,
        options: WriterOptions,
        step_tensor: Any,
        meta_graph: Callable[[], bytes | None] | None,
        progress: ChiefProgress | None = None,
        before_delta: Callable[[Any, int], None] = lambda _session, _step: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`meta_graph` is what goes into the `.meta` file of each full; None: there is no such file.

        `progress`: of the chief of a job, with which each cut has the progress of all its workers. `before_delta` is
        called with the Session and the step, by the thread that takes the delta.
        """
        super().__init__(
            run_dir, options=options, disk=Disk(), clock=clock, full_worker=CallersWorker("training")
        )
        self.watch = RunWatch(graph)
        self._graph = graph
        self._run_dir = run_dir
        self._step_tensor = step_tensor
        self._meta_graph = meta_graph
        self._progress = progress or ChiefProgress(run_dir)
        self._before_delta = before_delta
        self._cuts: SessionCuts | ShardCuts = (
            SessionCuts(graph, {}, {}) if graph.shards is None else ShardCuts(graph, graph.shards, {})
        )
        self._session: Any = None
        self._step = 0
        self._look_at = 0.0
        self._is_cut_in_steps = False
        self._is_cut_of_all_rows = False
        # Of the newest batch that was trained before this Session.
        self._resumed_batch = TrainedBatch()
        self._committed: list[Manifest] = []
        self._closing_cut: Cut | None = None
        self._remembered: Manifest | None = None

    @property
    def newest(self) -> Manifest | None:
        """What has the newest state on disk, a commit of ours or what the run goes on from."""
        return self._pipeline.newest

    @property
    def failure(self) -> CommitError | DirectoryBusyError | None:
        """Why what was last asked for is not on disk."""
        return self._pipeline.failure

    def is_started_for(self, session: Any) -> bool:
        """A Session that was lost makes way for another one, which is restored to what is committed."""
        return self._session is not None and self._session is session

    def is_session_closed(self) -> bool:
        return self._session is None or is_closed(self._session)

    def start(self, session: Any) -> Manifest | None:
        """Begin a run that goes on from what the Session was restored to. Returns the first full, if it wrote one.

        Raises DirectoryBusyError, ModelMismatchError, CommitError; ConfigurationError for the directory of another job;
        JobRestartedError when the chief's own progress cannot go back to it.
        """
        self._pipeline.start()
        self.wait()
        self._session = session
        open_chains.close_abandoned(self._run_dir, self)
        try:
            return self._begin_run(session)
        except BaseException:
            self._session = None
            self._chain.give_up()
            self.close()
            open_chains.forget(self._run_dir, self)
            raise

    def _begin_run(self, session: Any) -> Manifest | None:
        listing = self.open_chain()
        open_chains.register(self._run_dir, self)
        self._require_shared_directory()
        self._progress.claim()
        with as_invalid_argument():
            saved = restored_state(self._graph, self._run_dir, listing)
        tip = saved.newest if saved and lies_as_saved(self._graph, saved.newest) else None
        self._chain.begin_run(listing, tip)
        self._pipeline.go_on_from(tip)
        self.publish()
        self._progress.go_back(saved)
        self._graph.reach_in(session)
        self._graph.note_trained(is_trained=True)
        self._begin_marks(session, saved)
        self._step = self._read_step()
        if saved is None or tip is None:
            event(logger, logging.INFO, "a new chain begins", directory=self._run_dir, run=self._chain.run)
            try:
                self.write_first_full()
            finally:
                self._progress.job_saves.release()
            self._remember_new_chain()
        else:
            self._pipeline.note_saved(tip.step, b"")
            self._remember(saved)
            self._cuts.begin(Moment.of(tip.step, tip.watermark))
        self._progress.job_saves.begin(self._chain.run)
        self._clocks.restart()
        return self.newest if tip is None else None

    def _require_shared_directory(self) -> None:
        if self._graph.shards is not None and self.status.publishing is not None:
            raise ConfigurationError(
                "in a cluster every task writes its own rows into a directory that all share, and "
                f"{self.status.publishing.store} is the address of a store",
                hint="save into a directory that all tasks see, and bring it into the store with `hotdelta copy`",
            )

    def _begin_marks(self, session: Any, saved: ChainState | None) -> None:
        self.watch.leave()
        self._resumed_batch = TrainedBatch()
        marks = self._graph.marks
        if marks is None:
            return
        marks.reset(session)
        if saved is not None and marks.batch is not None:
            state = progress_at(saved, 0)
            self._resumed_batch = TrainedBatch(state.bookmark if state else None, saved.newest.watermark)

    def publish(self) -> None:
        save_schema(directory_of(self._run_dir, Kind.DELTA), self._graph.variables.schema)

    def close(self) -> None:
        self._graph.note_trained(is_trained=False)
        self.release()

    def note_run(self, next_step: int) -> bool:
        """A run is over; so many steps were made by now, or fewer. True: `save_after_run` may have something to do."""
        self.watch.leave()
        with self.lock:
            self._look_at = self._clock() + LOOK_SECONDS
            self._progress.job_saves.note_step()
            steps, self._step = next_step - self._step, next_step
            self._sweep()
            return self.count_steps(steps)

    def _sweep(self) -> None:
        """On the thread that trains, between two steps: keys whose time has come go after a commit."""
        if self._cuts.keyed.is_sweep_due:
            self._cuts.keyed.sweep(Moment(self._read_step()))

    @locked
    def save_after_run(self) -> bool:
        """Begin a delta that is due. True: a full is due, for `write_full`."""
        if not (self._pipeline.has_news or self._clocks.delta.is_due() or self.is_full_due()):
            return False
        is_idle = self._is_idle()
        if not is_idle and not self.is_full_due():
            self.save_if_due()
        return self.is_full_due() and self.is_job_ready()

    @locked
    def write_delta(self) -> Manifest | None:
        """What changed since the last save. None when nothing was committed: it failed, or nothing changed."""
        return self._commit(self.save)

    @locked
    def write_full(self) -> Manifest | None:
        """A full and its closing delta. None when it was not committed."""
        committed = self._commit(self.save_full)
        return committed if committed is not None and committed.kind is Kind.FULL else None

    def _commit(self, save: Callable[[], object]) -> Manifest | None:
        before = self.newest
        self._pipeline.failure = None
        self._note_step()
        self._sweep()
        try:
            save()
        finally:
            self._pipeline.drop_full()
            self._progress.job_saves.release()
        self._remember_new_chain()
        self.pauses.look()
        return None if self.newest is before else self.newest

    @locked
    def wait(self) -> None:
        """Until the delta in the making, if any, is committed or has failed. Not while one is begun."""
        self._pipeline.wait_for_delta()

    def take_committed(self) -> list[Manifest]:
        """The deltas that were committed since this was last asked, but for those of fulls."""
        committed = self._committed[:]
        # Meanwhile another one may have come.
        del self._committed[: len(committed)]
        return committed

    def find_place(self) -> TrainerState:
        """A Session knows steps only: all are of one epoch, the first."""
        return TrainerState(step=self._step, step_in_epoch=self._step)

    def _read_step(self) -> int:
        return int(self._session.run(self._step_tensor))

    def _note_step(self) -> None:
        """Also of the steps of other workers, of which nobody tells."""
        before, self._step = self._step, self._read_step()
        self._clocks.add(steps=self._step - before)

    def _is_idle(self) -> bool:
        """No step was made since the last cut, which is on disk."""
        self._note_step()
        is_unsaved = self._pipeline.has_news or self._pipeline.unsaved_reason is not None
        return not is_unsaved and not self._clocks.delta.has_steps

    def quiet(self) -> Quiet | None:
        return None if self.is_session_closed() else self.watch.quiet(self._session)

    def why_blind(self) -> str | None:
        return (
            "workers are asked after a step of the chief"
            if self._progress.job_saves.has_others
            else self.watch.why_blind
        )

    def _seconds_to_look(self) -> float:
        """A new chain begins with a full, and those are left to training."""
        if self.is_session_closed() or self._chain.tip is None:
            return math.inf
        seconds = 0.0 if self._pipeline.has_news else self._clocks.delta.seconds_to_look()
        if self.watch.is_cluster and self.options.delta.least_steps < math.inf:
            seconds = min(seconds, max(0.0, self._look_at - self._clock()))
        return seconds

    @locked
    def save_in_pause(self) -> bool:
        try:
            if self.is_session_closed():
                return False
            self._look_at = self._clock() + LOOK_SECONDS
            # Before the steps are looked at: one that ends after this is in no cut that follows from the look.
            quiet = self.quiet()
            if self._is_idle():
                self._clocks.delta.restart()
                return not self._is_cut_in_steps or self._cut_again(quiet)
            return super().save_in_pause()
        except (tf.errors.OpError, RuntimeError):
            if not self.is_session_closed():
                raise
            return False

    def _cut_again(self, quiet: Quiet | None) -> bool:
        if quiet is not None:
            self.save_in_quiet(quiet, lambda: self.cut(is_closing=False))
            if self._is_cut_of_all_rows:
                self._is_cut_in_steps = False
        return quiet is not None

    def is_job_ready(self) -> bool:
        return self._progress.job_saves.is_ready(self._step)

    def take_cut(self, quiet: Quiet | None) -> Cut | None:  # noqa: ARG002 - all steps are in the graph
        self._before_delta(self._session, self._step)
        try:
            cut = self._take_changed(self._cuts.take)
        finally:
            self._progress.job_saves.release()
        self._is_cut_in_steps = self.watch.is_cluster and (cut is None or not cut.is_empty)
        return cut

    def take_closing_cut(self, quiet: Quiet | None) -> Cut | None:  # noqa: ARG002 - fulls are left to training
        """The other workers of the job stop until the full is written, or given up."""
        self._is_cut_in_steps = self.watch.is_cluster
        is_first = self._chain.tip is None
        self._closing_cut = (
            self._forget_changed() if is_first else self._take_changed(self._cuts.take_for_full)
        )
        return self._closing_cut

    def _take_changed(self, take: Callable[..., Cut]) -> Cut | None:
        others = self._collect_others()
        if others is None:
            return None
        self._is_cut_of_all_rows = self._graph.mark_unrecorded(self._session)
        return take(self._session, self._places(others), trained_at=time.time())

    def _forget_changed(self) -> Cut | None:
        """The full that follows reads every row afterwards."""
        others = self._collect_others()
        if others is None:
            return None
        self._graph.begin_recording(self._session)
        self._session.run(self._graph.flag_initializers)
        places = self._places(others)
        place = places.read(self._session.run(places.fetches))
        keys = self._cuts.begin_chain(self._session, Moment.of(place.step, place.watermark))
        return Cut(place.step, (), {}, place.trainer_state, place.watermark, time.time(), keys=keys)

    def _collect_others(self) -> Mapping[str, Any] | None:
        """None when workers of the job do not answer."""
        try:
            return self._progress.job_saves.collect()
        except CommitError as error:
            self._pipeline.report_failed_delta("nothing is committed", error)
            return None

    def _places(self, others: Mapping[str, Any]) -> PlaceReader:
        kept = self._graph.marks.batch if self._graph.marks is not None else None

        def read(fetched: Any) -> Place:
            step, batch = fetched
            trained = self._resumed_batch if kept is None else kept.read(batch, before=self._resumed_batch)
            return self._progress.read(int(step), others, trained)

        return PlaceReader([self._step_tensor, kept.fetches if kept is not None else []], read)

    def give_back(self, cut: Cut) -> None:
        self._cuts.give_back(self._session, cut)

    def is_news(self, cut: Cut) -> bool:
        return not cut.is_empty

    def commit_delta(self, cut: Cut, link: Link) -> Manifest:
        manifest = self._cuts.commit(self._chain, self._session, cut, link)
        self._cuts.keyed.note_committed(cut)
        if cut is not self._closing_cut:
            self._committed.append(manifest)
        return manifest

    def new_full(self) -> SessionFull:
        # The rows of the full are read after those of its delta: what a worker writes in between is flagged again.
        meta_graph = self._meta_graph() if self._meta_graph is not None else None
        return SessionFull(self._graph, self._session, self._run_dir, meta_graph, self._progress)

    def commit_full(self, prepared: PreparedBundle, cut: Cut, link: Link) -> Manifest:
        schema, tables = self._graph.variables.schema.digest, self._cuts.records(cut)
        if link.parent is None:
            # Before it is there, for a delta may follow it at once. When it fails, no delta follows anything.
            self._cuts.keyed.note_committed(cut)
        return self._chain.commit_full(prepared, cut, link, schema=schema, tables=tables)

    def _remember_new_chain(self) -> None:
        newest = self.newest
        if newest is not None and newest.parent is None and newest is not self._remembered:
            self._remember(ChainState(self._run_dir, newest))

    def _remember(self, saved: ChainState) -> None:
        """What is on disk is what the next cut is compared with."""
        reader = StateReader(saved)
        values, rows = saved_values(self._graph, reader), saved_rows(self._graph, reader)
        if self._graph.shards is None:
            self._cuts = SessionCuts(self._graph, values, dict(rows))
        else:
            self._cuts = ShardCuts(self._graph, self._graph.shards, values)
            self._graph.shards.begin(self._session, rows)
        self._remembered = saved.newest


@dataclass(frozen=True, slots=True, eq=False)
class SessionFull:
    """A full that a Session writes at once, when it is finished: training waits, so nothing has to be copied before."""

    graph: TrainingGraph
    session: Any
    run_dir: Path
    meta_graph: bytes | None
    progress: ChiefProgress

    def copy(self) -> None:
        pass

    def overlay(self, cut: Cut) -> None:
        pass

    def abandon(self) -> None:
        pass

    def discard(self) -> None:
        pass

    def finish(
        self,
        *,
        values: Mapping[str, Array],  # noqa: ARG002 - read by the Session
        closing: Cut,
        node: Node,
        parent: Node | None,
    ) -> PreparedBundle:
        step, state = closing.step, closing.trainer_state
        prepared = self.graph.full.write(
            self.session, self.run_dir, node=node, parent=parent, step=step, trainer_state=state
        )
        # Not before: the progress in the full is that of its rows.
        self.progress.job_saves.release()
        if self.meta_graph is None:
            return prepared
        return add_file(prepared, META_SUFFIX, self.meta_graph)
