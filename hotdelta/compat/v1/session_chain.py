"""One training Session's chain: takes the directory, continues from what was restored, commits deltas and fulls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdelta.chain import names
from hotdelta.chain.commit import publish_file
from hotdelta.chain.disk import Disk
from hotdelta.chain.manifest import Kind, Manifest
from hotdelta.chain.verification import directory_of
from hotdelta.compat.v1 import open_chains
from hotdelta.compat.v1.full_bundle import META_SUFFIX, add_file
from hotdelta.compat.v1.restoring import restored_point, saved_rows, saved_values
from hotdelta.compat.v1.session_cut import SessionCuts
from hotdelta.compat.v1.shard_cut import ShardCuts
from hotdelta.compat.v1.training_graph import TrainingGraph
from hotdelta.errors import CommitError
from hotdelta.logs import event
from hotdelta.train.background import BackgroundWorker
from hotdelta.train.chain_tip import Link
from hotdelta.train.chain_writer import ChainWriter
from hotdelta.train.cut import Cut
from hotdelta.train.job import JobFolder
from hotdelta.train.resume import ResumePoint, ResumeReader
from hotdelta.train.trainer_state import TrainerState

logger = logging.getLogger(__name__)

STOP_SECONDS = 600.0


@dataclass(slots=True)
class _InFlight:
    """A cut that is being written; the thread that writes it says what came of it before it is idle again."""

    cut: Cut
    manifest: Manifest | None = None


class SessionChain:
    """Commits what the Sessions of one chief change. Called between two steps of the chief, by its thread.

    Deltas are written by a thread of their own, one at a time; fulls are not, as with tf.train.Saver. A save that fails
    is logged and its rows are due again; the first one raises.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        run_dir: Path,
        *,
        keep_fulls: int,
        step_tensor: Any,
        meta_graph: Callable[[], bytes] | None,
    ) -> None:
        """`meta_graph` is what goes into the `.meta` file of each full; None: there is no such file."""
        self._graph = graph
        self._run_dir = run_dir
        self._step_tensor = step_tensor
        self._meta_graph = meta_graph
        self._disk = Disk()
        self._chain = ChainWriter(run_dir, keep_fulls=keep_fulls, disk=self._disk)
        self._cuts: SessionCuts | ShardCuts = (
            SessionCuts(graph, {}, {}) if graph.shards is None else ShardCuts(graph, graph.shards, {})
        )
        self._session: Any = None
        self._writer = BackgroundWorker("hotdelta-delta-writer")
        self._in_flight: _InFlight | None = None

    def is_started_for(self, session: Any) -> bool:
        """A Session that was lost makes way for another one, which is restored to what is committed."""
        return self._session is not None and self._session is session

    def is_session_closed(self) -> bool:
        return self._session is None or bool(self._session._closed)

    def start(self, session: Any) -> Manifest | None:
        """Begin a run that goes on from what the Session was restored to. Returns the first full, if it wrote one.

        Raises DirectoryBusyError, ModelMismatchError, CommitError; ConfigurationError for the directory of a job, whose
        trainers save their own progress.
        """
        self._writer.start()
        self.wait()
        self._in_flight = None
        self._session = session
        open_chains.register(self._run_dir, self)
        listing = self._chain.open()
        JobFolder(self._run_dir).claim(None)
        point = restored_point(self._graph, self._run_dir, listing)
        self._chain.begin_run(listing, point.newest if point else None)
        schema = self._graph.variables.schema
        publish_file(
            directory_of(self._run_dir, Kind.DELTA),
            names.schema_name(schema.digest),
            schema.to_json(),
            self._disk,
        )
        if point is None:
            return self._start_chain(session)
        self._remember(session, point)
        return None

    @property
    def is_writing(self) -> bool:
        return self._writer.is_busy

    def begin_delta(self, session: Any) -> None:
        """Take what changed, and commit it in the background. Not while another delta is being written."""
        self.collect(session)
        if self._is_lost():
            self._try("full not committed", lambda: self._start_chain(session))
            return
        cut = self._take(session)
        if not cut.is_empty:
            self._submit(cut, self._chain.next_link())

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
        """Until the delta in the making, if any, is committed or has failed."""
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
        if self._is_lost():
            return self._try("full not committed", lambda: self._start_chain(session))
        # The rows of the full are read after those of the delta: what a worker writes in between is flagged again.
        cut, link = self._take(session), self._chain.next_link()
        self._submit(cut, link)
        if self.finish(session) is None:
            return None
        return self._try("full not committed", lambda: self._commit_full(session, cut, link))

    def close(self) -> None:
        self._writer.stop(STOP_SECONDS)
        self._chain.close()

    def _start_chain(self, session: Any) -> Manifest:
        cut = self._empty_cut(session)
        link = self._chain.next_link()
        manifest = self._commit_full(session, cut, Link(link.node, None))
        self._remember(session, ResumePoint(manifest, (), ()))
        return manifest

    def _remember(self, session: Any, point: ResumePoint) -> None:
        """What is on disk is what the next cut is compared with."""
        with ResumeReader(self._run_dir, point) as reader:
            values, rows = saved_values(self._graph, reader), saved_rows(self._graph, reader)
            if self._graph.shards is None:
                self._cuts = SessionCuts(self._graph, values, dict(rows))
            else:
                self._cuts = ShardCuts(self._graph, self._graph.shards, values)
                self._graph.shards.begin(session, rows)

    def _empty_cut(self, session: Any) -> Cut:
        """Forgets what was touched: the full that follows reads every row afterwards."""
        self._graph.begin_recording(session)
        session.run(self._graph.flag_initializers)
        step = int(session.run(self._step_tensor))
        return Cut(step, (), {}, self._state(step), None, time.time())

    def _take(self, session: Any) -> Cut:
        self._graph.mark_unrecorded(session)
        step = int(session.run(self._step_tensor))
        return self._cuts.take(
            session, trainer_state=self._state(step), step_tensor=self._step_tensor, trained_at=time.time()
        )

    def _state(self, step: int) -> bytes:
        return TrainerState(step=step).to_json()

    def _submit(self, cut: Cut, link: Link) -> None:
        in_flight = self._in_flight = _InFlight(cut)
        cuts, session = self._cuts, self._session

        def commit() -> None:
            in_flight.manifest = self._try(
                "delta not committed; its rows will be in the next one",
                lambda: cuts.commit(self._chain, session, cut, link),
            )

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
        if self._meta_graph is not None:
            prepared = add_file(prepared, META_SUFFIX, self._meta_graph())
        schema = self._graph.variables.schema.digest
        return self._chain.commit_full(prepared, cut, link, schema=schema, tables=self._cuts.records(cut))

    def _is_lost(self) -> bool:
        """The chain was removed under us: a delta would have no parent."""
        if self._chain.tip is not None and not self._chain.is_tip_lost():
            return False
        event(logger, logging.ERROR, "the chain is gone; a new one is started", directory=self._run_dir)
        self._chain.forget_tip()
        if self._chain.is_directory_lost():
            self._chain.reclaim_directory()
        return True

    def _try(self, phrase: str, commit: Callable[[], Manifest]) -> Manifest | None:
        try:
            manifest = commit()
        except CommitError as error:
            event(logger, logging.ERROR, phrase, reason=error)
            return None
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
