"""One training Session's chain: takes the directory, continues from what was restored, commits deltas and fulls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store.commit import publish_file
from hotdelta.compat.v1.chain import open_chains
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
from hotdelta.errors import CommitError, UnsavedError
from hotdelta.logs import FailureLog, event
from hotdelta.tensorflow_internals import is_closed
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.background import BackgroundWorker
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.save.pauses import TrainedBatch
from hotdelta.train.trainer_progress import progress_at

logger = logging.getLogger(__name__)

STOP_SECONDS = 600.0


@dataclass(slots=True)
class _InFlight:
    """A cut that is being written; the thread that writes it says what came of it before it is idle again."""

    cut: Cut
    manifest: Manifest | None = None


class SessionChain:
    """Commits what the Sessions of one chief change. Called between two steps of the chief, with `lock` held.

    Deltas are written by a thread of their own, one at a time; fulls are not, as with tf.train.Saver. A save that fails
    is logged and its rows are due again; the first one raises. `failure`: why the last one that was tried did.
    `newest`: what has the newest state on disk, a commit of ours or what the run goes on from.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        run_dir: Path,
        *,
        keep_fulls: int,
        step_tensor: Any,
        meta_graph: Callable[[], bytes | None] | None,
        progress: ChiefProgress | None = None,
        on_idle: Callable[[], None] = lambda: None,
        before_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`meta_graph` is what goes into the `.meta` file of each full; None: there is no such file.

        `progress`: of the chief of a job, with which each cut has the progress of all its workers. `on_idle` is called
        when a delta is written, by the thread that wrote it.
        """
        self.lock = threading.RLock()
        self._before_close = before_close
        self._graph = graph
        self._run_dir = run_dir
        self._step_tensor = step_tensor
        self._meta_graph = meta_graph
        self._progress = progress or ChiefProgress(run_dir)
        self.newest: Manifest | None = None
        self.failure: CommitError | None = None
        self._disk = Disk()
        self._chain = ChainWriter(run_dir, keep_fulls=keep_fulls, disk=self._disk)
        self._cuts: SessionCuts | ShardCuts = (
            SessionCuts(graph, {}, {}) if graph.shards is None else ShardCuts(graph, graph.shards, {})
        )
        self._session: Any = None
        self._writer = BackgroundWorker("hotdelta-delta-writer", on_idle=on_idle)
        # Of the newest batch that was trained before this Session.
        self._resumed_batch = TrainedBatch()
        self._in_flight: _InFlight | None = None
        self._delta_failures = FailureLog(logger)
        self._full_failures = FailureLog(logger)
        # Of the newest save that had something to save; and the newest step that is on disk.
        self._error: CommitError | None = None
        self._saved_step = 0

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
        self._writer.start()
        self.wait()
        self._in_flight = None
        self._session = session
        open_chains.close_abandoned(self._run_dir, self)
        try:
            return self._begin_run(session)
        except BaseException:
            self._session = None
            self.close()
            open_chains.forget(self._run_dir, self)
            raise

    def _begin_run(self, session: Any) -> Manifest | None:
        listing = self._chain.open()
        open_chains.register(self._run_dir, self)
        self._progress.claim()
        with as_invalid_argument():
            saved = restored_state(self._graph, self._run_dir, listing)
        tip = saved.newest if saved and lies_as_saved(self._graph, saved.newest) else None
        self._chain.begin_run(listing, tip)
        schema = self._graph.variables.schema
        publish_file(
            directory_of(self._run_dir, Kind.DELTA),
            names.schema_name(schema.digest),
            schema.to_json(),
            self._disk,
        )
        self._error = None
        self._progress.go_back(saved)
        self._begin_marks(session, saved)
        first = None
        if saved is None or tip is None:
            event(logger, logging.INFO, "a new chain begins", directory=self._run_dir, run=self._chain.run)
            first = self._noted(self._start_chain(session), self._full_failures)
        else:
            self._saved_step = tip.step
            self._remember(session, saved)
            self.newest = tip
        self._progress.begin(self._chain.run)
        return first

    def _begin_marks(self, session: Any, saved: ChainState | None) -> None:
        self._resumed_batch = TrainedBatch()
        marks = self._graph.marks
        if marks is None:
            return
        marks.reset(session)
        if saved is not None and marks.batch is not None:
            state = progress_at(saved, 0)
            self._resumed_batch = TrainedBatch(state.bookmark if state else None, saved.newest.watermark)

    def note_step(self) -> None:
        self._progress.note_step()

    @property
    def is_writing(self) -> bool:
        return self._writer.is_busy

    @property
    def has_failed(self) -> bool:
        """Whether the delta that was last written is not on disk, and its rows were not given back yet."""
        done = self._in_flight
        return done is not None and not self._writer.is_busy and done.manifest is None

    @property
    def is_lost(self) -> bool:
        """The chain was removed under us: a delta would have no parent."""
        return self._chain.tip is None or self._chain.is_tip_lost()

    def is_ready(self, kind: Kind, step: int) -> bool:
        """Whether a save that is due at this global step can be taken: all workers of the job have stopped.

        A delta waits until none is being written, too.
        """
        return (kind is Kind.FULL or not self._writer.is_busy) and self._progress.is_ready(step)

    def begin_delta(self, session: Any, is_moment: Callable[[], bool] = lambda: True) -> bool:
        """Take what changed, and commit it in the background. After `collect`, and not while a delta is being written.

        False: `is_moment`, which is asked after the cut, said that it is no moment of training; it is forgotten.
        """
        if self._replace_lost():
            self._start_chain_again(session)
            return True
        try:
            cut = self._take(session)
        finally:
            self._progress.release()
        if cut is not None and not is_moment():
            self._cuts.give_back(session, cut)
            return False
        if cut is not None and not cut.is_empty:
            self._submit(cut, self._chain.next_link())
        return True

    def collect(self, session: Any) -> Manifest | None:
        """The delta that was committed since this was last asked. The rows of one that failed are due again."""
        done = self._in_flight
        if done is None or self._writer.is_busy:
            return None
        self._in_flight = None
        if done.manifest is None:
            self._cuts.give_back(session, done.cut)
        return done.manifest

    def wait(self) -> None:
        """Until the delta in the making, if any, is committed or has failed. Not while one is begun."""
        with self.lock:
            self._writer.wait()

    def finish(self, session: Any) -> Manifest | None:
        self.wait()
        return self.collect(session)

    def save_delta(self, session: Any) -> Manifest | None:
        """Begin a delta, and wait for it. None when nothing was committed: it failed, or nothing changed."""
        self.finish(session)
        self.begin_delta(session)
        return self.finish(session)

    def save_full(self, session: Any) -> Manifest | None:
        """A full and its closing delta. None when it was not committed."""
        self.finish(session)
        if self._replace_lost():
            return self._start_chain_again(session)
        try:
            return self._save_full(session)
        finally:
            self._progress.release()

    def _save_full(self, session: Any) -> Manifest | None:
        # The rows of the full are read after those of the delta: what a worker writes in between is flagged again.
        cut, link = self._take(session), self._chain.next_link()
        if cut is None:
            return None
        self._submit(cut, link)
        if self.finish(session) is None:
            return None
        try:
            return self._noted(self._commit_full(session, cut, link), self._full_failures)
        except CommitError as error:
            self.failure = error
            self._full_failures.failed("full not committed; the deltas hold everything", reason=error)
            return None

    def require_saved(self, step: int) -> None:
        """At the end, after the last save. Raises UnsavedError when it is not on disk; `step` is training's last."""
        if self._error is not None:
            tip = self._chain.tip
            raise UnsavedError(
                self._error.message,
                steps=max(0, step - self._saved_step),
                rows=0,
                position=tip.position if tip else None,
                path=self._run_dir,
            ) from self._error

    def close(self) -> None:
        self._before_close()
        self._writer.stop(STOP_SECONDS)
        self._chain.close()

    def _start_chain(self, session: Any) -> Manifest:
        try:
            cut = self._empty_cut(session)
            link = self._chain.next_link()
            manifest = self._commit_full(session, cut, Link(link.node, None))
        finally:
            self._progress.release()
        self._saved_step = manifest.step
        self._remember(session, ChainState(self._run_dir, manifest))
        return manifest

    def _start_chain_again(self, session: Any) -> Manifest | None:
        try:
            manifest = self._start_chain(session)
        except CommitError as error:
            self._error = self.failure = error
            self._full_failures.failed("full not committed", reason=error)
            return None
        self._error = None
        return self._noted(manifest, self._full_failures)

    def _remember(self, session: Any, saved: ChainState) -> None:
        """What is on disk is what the next cut is compared with."""
        reader = StateReader(saved)
        values, rows = saved_values(self._graph, reader), saved_rows(self._graph, reader)
        if self._graph.shards is None:
            self._cuts = SessionCuts(self._graph, values, dict(rows))
        else:
            self._cuts = ShardCuts(self._graph, self._graph.shards, values)
            self._graph.shards.begin(session, rows)

    def _empty_cut(self, session: Any) -> Cut:
        """Forgets what was touched: the full that follows reads every row afterwards. Who calls this releases them."""
        others = self._progress.collect()
        self._graph.begin_recording(session)
        session.run(self._graph.flag_initializers)
        places = self._places(others)
        place = places.read(session.run(places.fetches))
        return Cut(place.step, (), {}, place.trainer_state, place.watermark, time.time())

    def _take(self, session: Any) -> Cut | None:
        """None when workers of the job do not answer. Who calls this releases them."""
        try:
            others = self._progress.collect()
        except CommitError as error:
            self._error = error
            self._delta_failures.failed("nothing is committed", reason=error)
            return None
        self._graph.mark_unrecorded(session)
        return self._cuts.take(session, self._places(others), trained_at=time.time())

    def _places(self, others: Mapping[str, Any]) -> PlaceReader:
        kept = self._graph.marks.batch if self._graph.marks is not None else None

        def read(fetched: Any) -> Place:
            step, batch = fetched
            trained = self._resumed_batch if kept is None else kept.read(batch, before=self._resumed_batch)
            return self._progress.read(int(step), others, trained)

        return PlaceReader([self._step_tensor, kept.fetches if kept is not None else []], read)

    def _submit(self, cut: Cut, link: Link) -> None:
        in_flight = self._in_flight = _InFlight(cut)
        cuts, session = self._cuts, self._session

        def commit() -> None:
            try:
                manifest = cuts.commit(self._chain, session, cut, link)
            except CommitError as error:
                self._error = self.failure = error
                self._delta_failures.failed("delta not committed; its rows are due again", reason=error)
                return
            self._error, self._saved_step = None, manifest.step
            in_flight.manifest = self._noted(manifest, self._delta_failures)

        self._writer.submit(commit)

    def _commit_full(self, session: Any, cut: Cut, link: Link) -> Manifest:
        prepared = self._graph.full.write(
            session,
            self._run_dir,
            node=link.node,
            parent=link.parent,
            step=cut.step,
            trainer_state=cut.trainer_state,
        )
        # Not before: the progress in the full is that of its rows.
        self._progress.release()
        meta_graph = self._meta_graph() if self._meta_graph is not None else None
        if meta_graph is not None:
            prepared = add_file(prepared, META_SUFFIX, meta_graph)
        schema = self._graph.variables.schema.digest
        return self._chain.commit_full(prepared, cut, link, schema=schema, tables=self._cuts.records(cut))

    def _replace_lost(self) -> bool:
        """Whether a new chain has to be started."""
        if not self.is_lost:
            return False
        event(logger, logging.ERROR, "the chain is gone; a new one is started", directory=self._run_dir)
        self._chain.forget_tip()
        if self._chain.is_directory_lost():
            self._chain.reclaim_directory()
        return True

    def _noted(self, manifest: Manifest, failures: FailureLog) -> Manifest:
        self.newest = manifest
        failures.worked(f"{manifest.kind}s are committed again")
        event(
            logger,
            logging.INFO,
            f"{manifest.kind} committed",
            position=manifest.position,
            step=manifest.step,
            rows=manifest.rows_changed,
            bytes=manifest.total_bytes,
        )
        return manifest
