"""From a cut to a commit: hands cuts to those who write them, and takes back what they could not write."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.format.manifest import Manifest
from hotdelta.errors import CommitError, DirectoryBusyError
from hotdelta.logs import FailureLog, event
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.background import BackgroundWorker, CallersWorker
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.save.figures import SaveFigures
from hotdelta.train.save.full_save import FullSave, FullState
from hotdelta.train.save.options import WriterStatus
from hotdelta.train.save.telling import SaveTelling
from hotdelta.train.save.trained import Trained
from hotdelta.train.tables.row_values import Array

logger = logging.getLogger(__name__)

STOP_SECONDS = 600.0


class DeltaState(Enum):
    """What becomes of the newest cut. FAILED: what it took was not given back yet."""

    IDLE = auto()
    WRITING = auto()
    FAILED = auto()


class SavePipeline:
    """At most one delta and one full are being written.

    Every method is called with the lock of the engine held: whoever holds it alone changes what counts as saved. What
    the writing threads report waits for `collect`. `newest`: what has the newest state on disk, a commit of ours or
    what the run goes on from. `failure`: why the newest write that failed did.
    """

    def __init__(
        self,
        trained: Trained,
        chain: ChainWriter,
        *,
        delta_worker: BackgroundWorker,
        full_worker: BackgroundWorker,
        clock: Callable[[], float],
        status: WriterStatus,
        figures: SaveFigures,
        telling: SaveTelling,
    ) -> None:
        self.newest: Manifest | None = None
        self.failure: CommitError | DirectoryBusyError | None = None
        self.saved_step, self.saved_state = 0, b""
        self._trained = trained
        self._chain = chain
        self._status = status
        self._figures, self._telling = figures, telling
        self._clock = clock
        self._delta_worker, self._full_worker = delta_worker, full_worker
        self._failed_cut: Cut | None = None
        self._full: FullSave | None = None
        self._delta_error: CommitError | None = None
        self._full_error: CommitError | DirectoryBusyError | None = None
        self._delta_failures = FailureLog(logger, clock)
        self._full_failures = FailureLog(logger, clock)

    def start(self) -> None:
        """Raises ConfigurationError."""
        self._telling.open()
        self._delta_worker.start()
        self._full_worker.start()

    def stop(self) -> None:
        """Finish what is being written, then end the threads."""
        self._delta_worker.stop(STOP_SECONDS)
        self._full_worker.stop(STOP_SECONDS)
        self._telling.close()

    @property
    def writes_fulls_aside(self) -> bool:
        """Whether training goes on while a full is written."""
        return not isinstance(self._full_worker, CallersWorker)

    @property
    def delta_state(self) -> DeltaState:
        if self._delta_worker.is_busy:
            return DeltaState.WRITING
        return DeltaState.IDLE if self._failed_cut is None else DeltaState.FAILED

    @property
    def full_state(self) -> FullState:
        return FullState.NONE if self._full is None else self._full.state

    @property
    def unsaved_reason(self) -> CommitError | DirectoryBusyError | None:
        """Why the newest cut that was handed over is not on disk; None when it is. Not while one is being written."""
        if self._chain.tip is not None:
            return self._delta_error
        return self._full_error or CommitError("no full is committed", path=self._chain.run_dir)

    @property
    def has_news(self) -> bool:
        """Whether the writing threads reported anything since the last `collect`. Every step asks."""
        if self._full is None:
            return self._failed_cut is not None
        return self._full.state in (FullState.COPIED, FullState.DONE) or self._full_worker.is_dead

    def note_saved(self, step: int, trainer_state: bytes) -> None:
        """Everything up to this step is on disk."""
        self._delta_error, self.saved_step, self.saved_state = None, step, trainer_state

    def go_on_from(self, tip: Manifest | None) -> None:
        """A run begins: what an earlier one has not written is forgotten."""
        self._delta_worker.wait()
        self.drop_full()
        self._failed_cut = self._delta_error = self._full_error = None
        self.newest = tip

    def hand_over(self, cut: Cut, *, is_closing: bool, stall_seconds: float) -> None:
        """Have the cut written. With no chain to follow only a full can take it."""
        link = self._chain.next_link()
        values = self._trained.snapshot()
        full = self._full if self._full is not None and not self._full.is_closing else None
        if full is not None:
            full.overlay(cut, is_closing=is_closing)
            if is_closing:
                self._chain.expect_full(link)
        if link.parent is None and full is not None:
            full.close(cut, link, values, self._full_commit(cut, link))
        else:
            self._delta_worker.submit(lambda: self._write_delta(cut, link, full, values, stall_seconds))

    def collect(self) -> bool:
        """Take in what the writing threads reported; False when something was not committed and is due again."""
        is_good = True
        # A full that nobody writes any more would be in the making for ever, and no other would begin.
        self._full_worker.require_alive()
        if self.delta_state is DeltaState.FAILED and self._failed_cut is not None:
            self._trained.give_back(self._failed_cut)
            self._failed_cut = None
            is_good = False
        if self._full is not None and self._full.state is FullState.DONE:
            error, self._full = self._full.error, None
            if error is None:
                self._full_error = None
                self._full_failures.worked("fulls are committed again")
            else:
                self.report_failed_full("full not committed", error)
                is_good = False
        return is_good

    def wait_for_delta(self) -> None:
        self._delta_worker.wait()

    def wait_for_full(self) -> None:
        """Until its rows are copied, or, once its closing delta is committed, until it is."""
        self._full_worker.wait()

    def start_full(self) -> None:
        """Begin to copy the tables. Raises CommitError, DirectoryBusyError."""
        self.new_full().start_copying()

    def new_full(self) -> FullSave:
        """Raises as `start_full`."""
        if self._chain.tip is None and self._chain.is_directory_lost():
            self._chain.reclaim_directory()
            self._trained.publish()
        self._full = FullSave(self._trained.new_full(), self._full_worker)
        return self._full

    def drop_full(self) -> None:
        """Give up the full in the making, if any."""
        if self._full is not None:
            self._full.drop()
            self._full = None

    def report_failed_full(self, phrase: str, error: CommitError | DirectoryBusyError) -> None:
        if self._chain.tip is not None and self._delta_error is None:
            phrase += "; the deltas hold everything"
        self._full_error = self.failure = error
        self._count_failure(error)
        self._full_failures.failed(phrase, reason=error)

    def report_failed_delta(self, phrase: str, error: CommitError) -> None:
        """Something that has to be saved is not, and will be due again."""
        self._delta_error = error
        self._delta_failures.failed(phrase, reason=error)

    def report_lost_chain(self, error: CommitError) -> None:
        self._count_failure(error)
        event(logger, logging.ERROR, "the chain is gone; a new one is started", reason=error)

    def _count_failure(self, error: CommitError | DirectoryBusyError) -> None:
        self._status.failures += 1
        self._status.last_error = str(error)

    def _write_delta(
        self, cut: Cut, link: Link, full: FullSave | None, values: Mapping[str, Array], stall_seconds: float
    ) -> None:
        """On the delta-writer thread: commit, then let the full that this delta closes be finished."""
        started = self._clock()
        closing = full if full is not None and full.is_closing else None
        taken, cut = cut, self._trained.complete(cut)
        if cut is not taken and full is not None:
            # Those rows are in no later cut.
            full.overlay_again(cut)
        try:
            manifest = self._trained.commit_delta(cut, link)
        except CommitError as error:
            self.failure = error
            self._count_failure(error)
            if cut.is_empty and cut.trainer_state == self.saved_state:
                self._delta_failures.failed("delta not committed; it held nothing new", reason=error)
            else:
                self.report_failed_delta("delta not committed; its rows are due again", error)
                self._failed_cut = cut
            if closing is not None:
                closing.fail(error)
            return
        self._status.deltas += 1
        self.note_saved(cut.step, cut.trainer_state)
        self._delta_failures.worked("deltas are committed again")
        write_ms = (self._clock() - started) * 1000
        self._note_commit(manifest, write_ms=write_ms, stall_ms=stall_seconds * 1000)
        self._telling.tell(manifest, time.time())
        if full is not None:
            self._overlay_written(full, cut, manifest)
        if closing is not None:
            closing.close(cut, link, values, self._full_commit(cut, link))

    def _overlay_written(self, full: FullSave, cut: Cut, manifest: Manifest) -> None:
        try:
            written = self._trained.read_back(cut, manifest)
        except CommitError as error:
            full.fail_later(error)
            return
        if written is not cut:
            full.overlay_again(written)

    def _full_commit(self, cut: Cut, link: Link) -> Callable[[PreparedBundle], None]:
        """How a finished full is committed, on the thread that writes it."""
        started = self._clock()

        def commit(prepared: PreparedBundle) -> None:
            manifest = self._trained.commit_full(prepared, cut, link)
            self._status.fulls += 1
            if link.parent is None:
                self.note_saved(cut.step, cut.trainer_state)
            self._note_commit(manifest, write_ms=(self._clock() - started) * 1000)

        return commit

    def _note_commit(self, manifest: Manifest, *, write_ms: float, **milliseconds: float) -> None:
        self.newest = manifest
        self._figures.count(manifest, write_seconds=write_ms / 1000, now=time.time())
        event(
            logger,
            logging.INFO,
            f"{manifest.kind} committed",
            position=manifest.position,
            step=manifest.step,
            rows=manifest.rows_changed,
            bytes=manifest.total_bytes,
            write_ms=write_ms,
            **milliseconds,
        )
