"""From a cut to a commit: hands cuts to the two writing threads, and takes back what they could not write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import CommitError, DirectoryBusyError
from hotdelta.logs import FailureLog, event
from hotdelta.train.rows.cut import Cut
from hotdelta.train.rows.trackers import Trackers
from hotdelta.train.save.background import BackgroundWorker
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.save.full_save import FullSave
from hotdelta.train.save.options import WriterStatus
from hotdelta.train.save.server_delta import with_rows_from_files
from hotdelta.train.tables.row_values import Array

logger = logging.getLogger(__name__)

STOP_SECONDS = 600.0


class SavePipeline:
    """At most one delta and one full are being written, each on a thread of its own.

    Every method is called with the lock of the saver held: whoever holds it alone changes what counts as saved. What
    the writing threads report waits for `collect`.
    """

    def __init__(
        self,
        chain: ChainWriter,
        *,
        publish: Callable[[Path], None],
        disk: Disk,
        clock: Callable[[], float],
        status: WriterStatus,
        on_idle: Callable[[], None],
    ) -> None:
        """`on_idle` is called by a writing thread that has nothing to write any more."""
        self.chain = chain
        self.status = status
        self._publish = publish
        self._disk = disk
        self._clock = clock
        self._delta_worker = BackgroundWorker("hotdelta-delta-writer", on_idle=on_idle)
        self._full_worker = BackgroundWorker("hotdelta-full-writer", on_idle=on_idle)
        self._failed_cut: Cut | None = None
        self._full: FullSave | None = None
        self._delta_error: CommitError | None = None
        self._full_error: CommitError | DirectoryBusyError | None = None
        self._delta_failures = FailureLog(logger, clock)
        self._full_failures = FailureLog(logger, clock)
        self.saved_step = 0
        self._saved_state = b""

    def start(self) -> None:
        self._delta_worker.start()
        self._full_worker.start()

    def stop(self) -> None:
        """Finish what is being written, then end the threads."""
        self._delta_worker.stop(STOP_SECONDS)
        self._full_worker.stop(STOP_SECONDS)

    @property
    def is_writing_delta(self) -> bool:
        return self._delta_worker.is_busy

    @property
    def has_full(self) -> bool:
        """Whether a full is in the making."""
        return self._full is not None

    @property
    def is_closing_full(self) -> bool:
        """Whether the full in the making has its closing cut."""
        return self._full is not None and self._full.is_closing

    @property
    def wants_closing_cut(self) -> bool:
        return self._full is not None and self._full.wants_closing_cut

    @property
    def unsaved_reason(self) -> CommitError | DirectoryBusyError | None:
        """Why the newest cut that was handed over is not on disk; None when it is. Not while one is being written."""
        if self.chain.tip is not None:
            return self._delta_error
        return self._full_error or CommitError("no full is committed", path=self.chain.run_dir)

    @property
    def has_news(self) -> bool:
        """Whether the writing threads reported anything since the last `collect`. Every step asks."""
        if self._full is None:
            return self._failed_cut is not None
        return self._full.is_done or self._full.wants_closing_cut or self._full_worker.is_dead

    def note_saved(self, step: int, trainer_state: bytes) -> None:
        """Everything up to this step is on disk."""
        self._delta_error, self.saved_step, self._saved_state = None, step, trainer_state

    def hand_over(self, cut: Cut, trackers: Trackers, *, is_closing: bool, stall_seconds: float) -> None:
        """Have the cut written. With no chain to follow only a full can take it."""
        link = self.chain.next_link()
        values = trackers.snapshot()
        full = self._full if self._full is not None and not self._full.is_closing else None
        if full is not None:
            full.overlay(cut, is_closing=is_closing)
        if link.parent is None and full is not None:
            trackers.scrub.remember(cut)
            full.close(cut, link, values, self._full_commit(cut, link, trackers))
        else:
            self._delta_worker.submit(
                lambda: self._write_delta(cut, link, trackers, full, values, stall_seconds)
            )

    def collect(self, trackers: Trackers) -> bool:
        """Take in what the writing threads reported; False when something was not committed and is due again."""
        is_good = True
        # A full that nobody writes any more would be in the making for ever, and no other would begin.
        self._full_worker.require_alive()
        if self._failed_cut is not None and not self._delta_worker.is_busy:
            trackers.give_back(self._failed_cut)
            self._failed_cut = None
            is_good = False
        if self._full is not None and self._full.is_done:
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

    def start_full(self, trackers: Trackers, *, trainer_state_bytes: int) -> None:
        """Begin to copy the tables in the background. Raises CommitError, DirectoryBusyError."""
        self._full = self._new_full(trackers, trainer_state_bytes)
        self._full.start_copying()

    def write_first_full(
        self, trackers: Trackers, take_closing_cut: Callable[[], None], *, trainer_state_bytes: int
    ) -> None:
        """Copy, close and commit a full while training waits. Raises CommitError."""
        full = self._full = self._new_full(trackers, trainer_state_bytes)
        full.copy()
        if full.wants_closing_cut:
            take_closing_cut()
        self.wait_for_full()
        self._full = None
        if full.error is not None:
            raise full.error

    def _new_full(self, trackers: Trackers, trainer_state_bytes: int) -> FullSave:
        if self.chain.tip is None and self.chain.is_directory_lost():
            self.chain.reclaim_directory()
            self._publish(self.chain.run_dir)
        return FullSave(
            self.chain.run_dir,
            trackers,
            trainer_state_bytes=trainer_state_bytes,
            disk=self._disk,
            worker=self._full_worker,
        )

    def drop_full(self) -> None:
        """Give up the full in the making, if any."""
        if self._full is not None:
            self._full.drop()
            self._full = None

    def report_failed_full(self, phrase: str, error: CommitError | DirectoryBusyError) -> None:
        if self.chain.tip is not None and self._delta_error is None:
            phrase += "; the deltas hold everything"
        self._full_error = error
        self._count_failure(error)
        self._full_failures.failed(phrase, reason=error)

    def report_lost_chain(self, error: CommitError) -> None:
        self._count_failure(error)
        event(logger, logging.ERROR, "the chain is gone; a new one is started", reason=error)

    def _count_failure(self, error: CommitError | DirectoryBusyError) -> None:
        self.status.failures += 1
        self.status.last_error = str(error)

    def _write_delta(
        self,
        cut: Cut,
        link: Link,
        trackers: Trackers,
        full: FullSave | None,
        values: Mapping[str, Array],
        stall_seconds: float,
    ) -> None:
        """On the delta-writer thread: commit, then let the full that this delta closes be finished."""
        started = self._clock()
        closing = full if full is not None and full.is_closing else None
        cut = self._add_unrecorded_rows(cut, trackers, full)
        try:
            manifest = self.chain.commit_delta(
                cut,
                link,
                others=trackers.variables.others,
                schema=trackers.variables.schema.digest,
                tables=trackers.records(cut),
            )
        except CommitError as error:
            self._count_failure(error)
            if cut.is_empty and cut.trainer_state == self._saved_state:
                self._delta_failures.failed("delta not committed; it held nothing new", reason=error)
            else:
                self._delta_failures.failed("delta not committed; its rows are due again", reason=error)
                self._delta_error, self._failed_cut = error, cut
            if closing is not None:
                closing.fail(error)
            return
        trackers.scrub.remember(cut)
        self.status.deltas += 1
        self.note_saved(cut.step, cut.trainer_state)
        self._delta_failures.worked("deltas are committed again")
        write_ms = (self._clock() - started) * 1000
        _log_commit("delta committed", manifest, write_ms=write_ms, stall_ms=stall_seconds * 1000)
        if full is not None and trackers.keys_on_servers():
            self._overlay_from_files(full, cut, manifest)
        if closing is not None:
            closing.close(cut, link, values, self._full_commit(cut, link, trackers))

    def _overlay_from_files(self, full: FullSave, cut: Cut, manifest: Manifest) -> None:
        """The rows that servers wrote into a delta go into the full in the making, too."""
        directory = directory_of(self.chain.run_dir, manifest.kind)
        try:
            full.overlay_again(with_rows_from_files(cut, directory, manifest.prefix))
        except CommitError as error:
            full.fail_later(error)

    def _add_unrecorded_rows(self, cut: Cut, trackers: Trackers, full: FullSave | None) -> Cut:
        """What the scrub found goes into the delta, and into the full in the making: it is in no later cut."""
        cut, missed = trackers.scrub.complete(cut)
        if missed and full is not None:
            full.overlay_again(cut)
        for table, count in missed.items():
            self.status.rows_unrecorded += count
            event(logger, logging.ERROR, "rows changed that nothing recorded", table=table, rows=count)
        return cut

    def _full_commit(self, cut: Cut, link: Link, trackers: Trackers) -> Callable[[PreparedBundle], None]:
        """How a finished full is committed, on the full-writer thread."""
        started = self._clock()

        def commit(prepared: PreparedBundle) -> None:
            manifest = self.chain.commit_full(
                prepared, cut, link, schema=trackers.variables.schema.digest, tables=trackers.records(cut)
            )
            self.status.fulls += 1
            if link.parent is None:
                self.note_saved(cut.step, cut.trainer_state)
            _log_commit("full committed", manifest, write_ms=(self._clock() - started) * 1000)

        return commit


def _log_commit(phrase: str, manifest: Manifest, **milliseconds: float) -> None:
    event(
        logger,
        logging.INFO,
        phrase,
        position=manifest.position,
        step=manifest.step,
        rows=manifest.rows_changed,
        bytes=manifest.total_bytes,
        **milliseconds,
    )
