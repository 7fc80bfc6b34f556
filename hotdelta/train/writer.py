"""The engine of incremental checkpointing: decides when to cut, cuts between steps, writes in the background.

The Keras callback and the custom-loop writer are thin layers over `ChainTrainer`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hotdelta.chain.bundle import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.manifest import Manifest
from hotdelta.chain.position import Position
from hotdelta.errors import CommitError, ConfigurationError, DirectoryBusyError
from hotdelta.logs import event
from hotdelta.train.background import BackgroundWorker
from hotdelta.train.chain_writer import ChainWriter, Link
from hotdelta.train.cut import Cut
from hotdelta.train.full_save import FullSave
from hotdelta.train.resume import ResumePoint, ResumeReader, check_fits, find_resume_point, load_variables
from hotdelta.train.row_values import Array
from hotdelta.train.save_clock import SaveClock
from hotdelta.train.touched import TouchedRows
from hotdelta.train.trackers import NOTHING, Trackers
from hotdelta.train.trainer_state import StateRegistry, TrainerState
from hotdelta.train.variables import ModelVariables
from hotdelta.train.writer_options import Resumed, WriterOptions, WriterStatus

logger = logging.getLogger(__name__)

STOP_SECONDS = 600.0


class ChainTrainer:
    """Saves a model's changes as a chain of deltas and fulls.

    One training thread calls every method. Two background threads write, one delta and one full at a time; what they
    report is collected by the training thread, which alone changes what counts as saved.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        options: WriterOptions,
        publish: Callable[[Path], None] = lambda _run_dir: None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`publish` writes what a reader needs beside the chain (schema, serving graph); it may be called again."""
        self.options = options
        self.states = StateRegistry()
        self.status = WriterStatus()
        self.progress = TrainerState()
        self.step_of: Callable[[], int] = lambda: self.progress.step
        self._publish = publish
        self._disk = disk or Disk()
        self._clock, self._wall_clock = clock, wall_clock
        self._chain = ChainWriter(
            run_dir, keep_fulls=options.keep_fulls, disk=self._disk, wall_clock=wall_clock
        )
        self._delta_worker = BackgroundWorker("hotdelta-delta-writer")
        self._full_worker = BackgroundWorker("hotdelta-full-writer")
        self._trackers: Trackers | None = None
        self._full: FullSave | None = None
        self._failed_cut: Cut | None = None
        self._last_state = b""
        self._is_full_wanted = False
        self._watermark: float | None = None
        self._delta_clock = SaveClock(options.delta, clock, self._count_touched_rows)
        self._full_clock = SaveClock(options.full, clock, self._count_touched_rows)

    @property
    def trackers(self) -> Trackers:
        if self._trackers is None:
            raise ConfigurationError(
                "the writer has not been started", hint="call start() before the first step"
            )
        return self._trackers

    def _count_touched_rows(self) -> int:
        return self.trackers.touched_rows()

    @property
    def position(self) -> Position | None:
        """The newest committed position."""
        tip = self._chain.tip
        return tip.position if tip else None

    def start(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, TouchedRows],
        demanded: frozenset[str] = NOTHING,
        is_resuming: bool = True,
    ) -> Resumed | None:
        """Take the directory, load the newest position into the variables, and write a first full when there is none.

        Raises DirectoryBusyError, ModelMismatchError (nothing was changed), CommitError (the first full failed).
        """
        listing = self._chain.open()
        try:
            self._delta_worker.start()
            self._full_worker.start()
            point = find_resume_point(self._chain.run_dir, listing) if is_resuming else None
            resumed = self._load(point, variables) if point else None
            self._chain.begin_run(listing, point.newest if point else None)
            self._publish(self._chain.run_dir)
            self._bind(variables, touched=touched, demanded=demanded, unsaved=NOTHING)
            if point is None:
                self._write_first_full()
        except BaseException:
            self._release()
            raise
        self._last_state = self.progress.to_json()
        self._delta_clock.restart()
        self._full_clock.restart()
        return resumed

    def _load(self, point: ResumePoint, variables: ModelVariables) -> Resumed:
        with ResumeReader(self._chain.run_dir, point) as reader:
            check_fits(reader, variables)
            state = reader.trainer_state()
            load_variables(reader, variables)
        self.progress = state
        self._watermark = point.newest.watermark
        self.states.restore(state.registered)
        for problem in point.problems:
            event(logger, logging.ERROR, "resuming before a damaged link", reason=problem)
        step = point.newest.step
        event(logger, logging.INFO, "resumed", position=point.node, step=step, deltas=len(point.deltas))
        return Resumed(
            position=point.node.position,
            step=step,
            epoch=state.epoch,
            step_in_epoch=state.step_in_epoch,
            state=state.registered,
            problems=tuple(str(problem) for problem in point.problems),
        )

    def rebind(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, TouchedRows],
        demanded: frozenset[str],
        unsaved: frozenset[str],
    ) -> None:
        """Go on with other variables (a recompiled optimizer); what is `unsaved` is written whole, and a full follows.

        The tables are written whole too: who trained them since the old optimizer went is not known.
        """
        if variables.schema.digest != self.trackers.variables.schema.digest:
            raise ConfigurationError(
                "the model is not the one that this chain was started with",
                hint="give another model a directory, and a checkpoint callback, of its own",
            )
        self.save()
        self._drop_full()
        tables = frozenset(item.key for item in variables.row_variables)
        self._bind(variables, touched=touched, demanded=demanded, unsaved=unsaved | tables)
        self._is_full_wanted = True

    def _bind(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, TouchedRows],
        demanded: frozenset[str],
        unsaved: frozenset[str],
    ) -> None:
        if self._trackers is not None:
            self._trackers.stop()
        self._trackers = Trackers(
            variables,
            touched=touched,
            demanded=demanded,
            unsaved=unsaved,
            scrub_saves=self.options.scrub_saves,
        )

    def check_traces(self, graphs: Iterable[Any]) -> None:
        """Prove for each traced training function that every write is recorded (see trace_check)."""
        for graph in graphs:
            self.trackers.check_trace(graph)

    def step(self, steps: int = 1) -> None:
        """Tell that training steps were made; saves when one is due. The pause is O(touched rows)."""
        self.progress = self.progress.after_steps(steps)
        self._delta_clock.add(steps=steps)
        self._full_clock.add(steps=steps)
        self.save_if_due()

    def end_epoch(self, epoch: int) -> None:
        """Tell that the `epoch`-th epoch, counted from 0, is over."""
        self.progress = self.progress.after_epoch(epoch)
        self._delta_clock.add(epochs=1)
        self._full_clock.add(epochs=1)
        self.save_if_due()

    def watermark(self, seconds: float) -> None:
        """The event time of the newest example that training has seen; it only goes forward."""
        self._watermark = seconds if self._watermark is None else max(self._watermark, seconds)

    def save_if_due(self) -> None:
        self._collect()
        is_delta_due = self._delta_clock.is_due()
        if self._full is None and (self._full_clock.is_due() or (self._is_full_wanted and is_delta_due)):
            self._start_full()
        is_closing = self._full is not None and self._full.wants_closing_cut
        if not is_closing and not is_delta_due:
            return
        if self._delta_worker.is_busy:
            self.status.postponed += 1
            return
        self._notice_lost_chain()
        self._cut(is_closing=is_closing and self._full is not None)

    def save(self) -> Position | None:
        """Commit a delta with everything up to now, and wait for it. Returns the newest committed position.

        With no chain to follow (it was removed while training) this is a full.
        """
        self._finish_delta()
        self._notice_lost_chain()
        if self._chain.tip is None:
            return self.save_full()
        self._cut(is_closing=self._full is not None and self._full.wants_closing_cut)
        self._finish_delta()
        return self.position

    def save_full(self) -> Position | None:
        """Commit a full (and its closing delta) with everything up to now, and wait for it."""
        self._finish_full()
        self._notice_lost_chain()
        self._start_full()
        self._finish_full()
        return self.position

    def finish(self) -> Position | None:
        """Save everything up to now, a delta first; then finish the full in the making, or one that is due."""
        self.save()
        self._finish_full()
        return self.save_full() if self._full_clock.is_due() else self.position

    def close(self) -> None:
        """Finish what is being written and give the directory back. Does not save: call save() first."""
        self._finish_delta()
        self._finish_full()
        self._release()

    def _release(self) -> None:
        self._delta_worker.stop(STOP_SECONDS)
        self._full_worker.stop(STOP_SECONDS)
        if self._trackers is not None:
            self._trackers.stop()
            self._trackers = None
        self._chain.close()

    def _finish_delta(self) -> None:
        self._delta_worker.wait()
        self._collect()

    def _finish_full(self) -> None:
        """Wait for the full in the making, taking its closing cut here."""
        full = self._full
        if full is None:
            return
        full.wait_for_worker()
        self._finish_delta()
        if full.wants_closing_cut:
            self._cut(is_closing=True)
        self._finish_delta()
        full.wait_for_worker()
        self._collect()

    def _cut(self, *, is_closing: bool) -> None:
        """Take what changed and hand it to the writers. With no chain to follow only a full can take it."""
        if self._chain.tip is None and not is_closing:
            return
        started = self._clock()
        cut = self._take_cut()
        self._delta_clock.restart()
        if cut.is_empty and cut.trainer_state == self._last_state and not is_closing:
            return
        try:
            self._hand_over(cut, started, is_closing=is_closing)
        except BaseException:
            self.trackers.give_back(cut)
            raise

    def _hand_over(self, cut: Cut, started: float, *, is_closing: bool) -> None:
        self._last_state = cut.trainer_state
        link = self._chain.next_link()
        values = self.trackers.snapshot()
        full = self._full if self._full is not None and not self._full.is_closing else None
        if full is not None:
            full.overlay(cut, is_closing=is_closing)
        stall = self._note_stall(started)
        if link.parent is None and full is not None:
            self.trackers.scrub.remember(cut)
            full.close(cut, link, values, self._full_commit(cut, link))
        else:
            self._delta_worker.submit(lambda: self._write_delta(cut, link, full, values, stall))

    def _take_cut(self) -> Cut:
        self.progress = self.progress.with_registered(self.states.read())
        return self.trackers.cut(
            step=self.step_of(),
            trainer_state=self.progress.to_json(),
            watermark=self._watermark,
            trained_at=self._wall_clock(),
        )

    def _note_stall(self, started: float) -> float:
        stall = self._clock() - started
        self.status.last_stall_seconds = stall
        self.status.longest_stall_seconds = max(self.status.longest_stall_seconds, stall)
        return stall

    def _write_delta(
        self, cut: Cut, link: Link, full: FullSave | None, values: Mapping[str, Array], stall: float
    ) -> None:
        """On the delta-writer thread: commit, then let the full that this delta closes be finished."""
        started = self._clock()
        trackers = self.trackers
        closing = full if full is not None and full.is_closing else None
        cut = self._add_unrecorded_rows(cut, full)
        try:
            manifest = self._chain.commit_delta(
                cut,
                link,
                others=trackers.variables.others,
                schema=trackers.variables.schema.digest,
                tables=trackers.records(cut),
            )
        except CommitError as error:
            self._report_failure("delta not committed; its rows will be in the next one", error)
            self._failed_cut = cut
            if closing is not None:
                closing.fail(error)
            return
        trackers.scrub.remember(cut)
        self.status.deltas += 1
        write_ms = (self._clock() - started) * 1000
        _log_commit("delta committed", manifest, write_ms=write_ms, stall_ms=stall * 1000)
        if closing is not None:
            closing.close(cut, link, values, self._full_commit(cut, link))

    def _add_unrecorded_rows(self, cut: Cut, full: FullSave | None) -> Cut:
        """What the scrub found goes into the delta, and into the full in the making: it is in no later cut."""
        cut, missed = self.trackers.scrub.complete(cut)
        if missed and full is not None:
            full.overlay_again(cut)
        for table, count in missed.items():
            self.status.rows_unrecorded += count
            event(logger, logging.ERROR, "rows changed that nothing recorded", table=table, rows=count)
        return cut

    def _full_commit(self, cut: Cut, link: Link) -> Callable[[PreparedBundle], None]:
        """How a finished full is committed, on the full-writer thread."""
        trackers = self.trackers
        started = self._clock()

        def commit(prepared: PreparedBundle) -> None:
            manifest = self._chain.commit_full(
                prepared, cut, link, schema=trackers.variables.schema.digest, tables=trackers.records(cut)
            )
            self.status.fulls += 1
            _log_commit("full committed", manifest, write_ms=(self._clock() - started) * 1000)

        return commit

    def _collect(self) -> None:
        """Take in what the background threads reported. Only the training thread gives rows back."""
        if self._failed_cut is not None and not self._delta_worker.is_busy:
            self.trackers.give_back(self._failed_cut)
            self._failed_cut = None
            self._last_state = b""
        if self._full is not None and self._full.is_done:
            error, self._full = self._full.error, None
            if error is not None:
                self._report_failure("full not committed", error)
                self._is_full_wanted = self._chain.tip is None

    def _notice_lost_chain(self) -> None:
        """When the chain was removed under us a delta would have no parent: the next save is a full.

        Only while no delta is being written.
        """
        if self._chain.is_tip_lost():
            error = CommitError(f"the chain was removed from {self._chain.run_dir}", path=self._chain.run_dir)
            self._report_failure("the chain is gone; a new one is started", error)
            self._drop_full()
            self._chain.forget_tip()
            self._is_full_wanted = True

    def _start_full(self) -> None:
        """Begin to copy the tables in the background; the closing cut follows when all are copied."""
        self._is_full_wanted = False
        self._full_clock.restart()
        try:
            self._full = self._new_full()
        except (CommitError, DirectoryBusyError) as error:
            self._report_failure("full not started", error)
            self._is_full_wanted = self._chain.tip is None
            # Not at every step: when there is no chain, the full is tried when a delta would be.
            self._delta_clock.restart()
            return
        self._full.start_copying()

    def _new_full(self) -> FullSave:
        self.progress = self.progress.with_registered(self.states.read())
        if self._chain.tip is None and self._chain.is_directory_lost():
            self._chain.reclaim_directory()
            self._publish(self._chain.run_dir)
        return FullSave(
            self._chain.run_dir,
            self.trackers,
            trainer_state_bytes=len(self.progress.to_json()),
            disk=self._disk,
            worker=self._full_worker,
        )

    def _drop_full(self) -> None:
        if self._full is not None:
            self._full.drop()
            self._full = None

    def _write_first_full(self) -> None:
        """Training has not begun, so this thread may wait for it. Raises CommitError."""
        full = self._full = self._new_full()
        full.copy()
        if full.wants_closing_cut:
            self._cut(is_closing=True)
        full.wait_for_worker()
        self._full = None
        if full.error is not None:
            raise full.error

    def _report_failure(self, phrase: str, error: CommitError | DirectoryBusyError) -> None:
        self.status.failures += 1
        self.status.last_error = str(error)
        event(logger, logging.ERROR, phrase, reason=error)


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
