"""The engine of incremental checkpointing: resumes, decides when to save, and cuts between steps.

The Keras callback and the custom-loop writer are thin layers over `ChainTrainer`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hotdelta.chain.disk import Disk
from hotdelta.chain.position import Position
from hotdelta.errors import CommitError, ConfigurationError, DirectoryBusyError
from hotdelta.logs import event
from hotdelta.train.chain_writer import ChainWriter
from hotdelta.train.cut import Cut
from hotdelta.train.job import Job
from hotdelta.train.job_saves import JobSaves
from hotdelta.train.resume import ResumePoint, ResumeReader, check_fits, find_resume_point, load_variables
from hotdelta.train.save_clock import SaveClock
from hotdelta.train.save_pipeline import SavePipeline
from hotdelta.train.touched import AnyTouchedRows
from hotdelta.train.trackers import NOTHING, Trackers
from hotdelta.train.trainer_state import StateRegistry, TrainerState
from hotdelta.train.variables import ModelVariables
from hotdelta.train.writer_options import Resumed, WriterOptions, WriterStatus

logger = logging.getLogger(__name__)


class ChainTrainer:
    """Saves a model's changes as a chain of deltas and fulls.

    One training thread calls every method; the writing happens in the threads of the pipeline.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        options: WriterOptions,
        publish: Callable[[Path], None] = lambda _run_dir: None,
        job: Job | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`publish` writes what a reader needs beside the chain (schema, serving graph); it may be called again.

        `job`: the trainers with which this one, the first, saves together.
        """
        self.options = options
        self.states = StateRegistry()
        self.status = WriterStatus()
        self.progress = TrainerState()
        self.step_of: Callable[[], int] = lambda: self.progress.step
        self._publish = publish
        self._clock, self._wall_clock = clock, wall_clock
        self._job = JobSaves(run_dir, job)
        disk = disk or Disk()
        self._chain = ChainWriter(run_dir, keep_fulls=options.keep_fulls, disk=disk)
        self._pipeline = SavePipeline(
            self._chain, publish=publish, disk=disk, clock=clock, status=self.status
        )
        self._trackers: Trackers | None = None
        self._last_state = b""
        self._are_replicas_checked = False
        self._is_full_wanted = False
        self._watermark: float | None = None
        self._delta_clock = SaveClock(options.delta, clock, self._count_touched_rows, self._find_place)
        self._full_clock = SaveClock(options.full, clock, self._count_touched_rows, self._find_place)

    @property
    def trackers(self) -> Trackers:
        if self._trackers is None:
            raise ConfigurationError(
                "the writer has not been started", hint="call start() before the first step"
            )
        return self._trackers

    def _find_place(self) -> TrainerState:
        return self.progress

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
        touched: Mapping[str, AnyTouchedRows],
        demanded: frozenset[str] = NOTHING,
        is_resuming: bool = True,
    ) -> Resumed | None:
        """Take the directory, load the newest position into the variables, and write a first full when there is none.

        Raises DirectoryBusyError, ModelMismatchError (nothing was changed), CommitError (the first full failed).
        """
        listing = self._chain.open()
        try:
            self._job.claim()
            self._pipeline.start()
            point = find_resume_point(self._chain.run_dir, listing) if is_resuming else None
            resumed = self._load(point, variables) if point else None
            self._chain.begin_run(listing, point.newest if point else None)
            self._publish(self._chain.run_dir)
            self._bind(variables, touched=touched, demanded=demanded, unsaved=NOTHING)
            if point is None:
                self._write_first_full()
            self._job.begin(self._chain.run, point.node.position if point else None)
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
        touched: Mapping[str, AnyTouchedRows],
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
        self._pipeline.drop_full()
        tables = frozenset(item.key for item in variables.row_variables)
        self._bind(variables, touched=touched, demanded=demanded, unsaved=unsaved | tables)
        self._is_full_wanted = True

    def _bind(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, AnyTouchedRows],
        demanded: frozenset[str],
        unsaved: frozenset[str],
    ) -> None:
        if self._trackers is not None:
            self._trackers.stop()
        self._are_replicas_checked = False
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
        """Tell that training steps were made; saves when one is due. The pause is O(touched rows).

        Raises ConfigurationError when the first step left the copies of a variable on several devices unequal.
        """
        if not self._are_replicas_checked:
            self.trackers.check_replicas()
            self._are_replicas_checked = True
        self.progress = self.progress.after_steps(steps)
        self._delta_clock.add(steps=steps)
        self._full_clock.add(steps=steps)
        self.save_if_due()

    def begin_epoch(self, epoch: int) -> None:
        """Tell which epoch begins, when that may not be the one after the last: a second fit starts again at 0."""
        self.progress = self.progress.in_epoch(epoch)

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
        is_full_due = self._full_clock.is_due() or (self._is_full_wanted and is_delta_due)
        if is_full_due and not self._pipeline.has_full:
            self._start_full()
        if not self._pipeline.wants_closing_cut and not is_delta_due:
            return
        if self._pipeline.is_writing_delta:
            self.status.postponed += 1
            return
        if not self._job.is_ready():
            return
        self._notice_lost_chain()
        self._cut(is_closing=self._pipeline.wants_closing_cut)

    def save(self) -> Position | None:
        """Commit a delta with everything up to now, and wait for it. Returns the newest committed position.

        With no chain to follow (it was removed while training) this is a full.
        """
        self._finish_delta()
        self._notice_lost_chain()
        if self._chain.tip is None:
            return self.save_full()
        self._cut(is_closing=self._pipeline.wants_closing_cut)
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
        self._pipeline.stop()
        if self._trackers is not None:
            self._trackers.stop()
            self._trackers = None
        self._chain.close()

    def _finish_delta(self) -> None:
        self._pipeline.wait_for_delta()
        self._collect()

    def _finish_full(self) -> None:
        """Wait for the full in the making, taking its closing cut here."""
        self._pipeline.wait_for_full()
        self._finish_delta()
        if self._pipeline.wants_closing_cut:
            self._cut(is_closing=True)
        self._finish_delta()
        self._pipeline.wait_for_full()
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
        self._last_state = cut.trainer_state
        stall = self._note_stall(started)
        try:
            self._pipeline.hand_over(cut, self.trackers, is_closing=is_closing, stall_seconds=stall)
        except BaseException:
            self.trackers.give_back(cut)
            raise

    def _take_cut(self) -> Cut:
        others = self._job.collect()
        try:
            self.progress = self.progress.with_registered(self.states.read()).with_trainers(others)
            return self.trackers.cut(
                step=self.step_of(),
                trainer_state=self.progress.to_json(),
                watermark=self._watermark,
                trained_at=self._wall_clock(),
            )
        finally:
            self._job.release()

    def _note_stall(self, started: float) -> float:
        stall = self._clock() - started
        self.status.last_stall_seconds = stall
        self.status.longest_stall_seconds = max(self.status.longest_stall_seconds, stall)
        return stall

    def _collect(self) -> None:
        if not self._pipeline.collect(self.trackers):
            self._last_state = b""
            self._is_full_wanted = self._is_full_wanted or self._chain.tip is None

    def _notice_lost_chain(self) -> None:
        """When the chain was removed under us a delta would have no parent: the next save is a full.

        Only while no delta is being written.
        """
        if self._chain.is_tip_lost():
            error = CommitError(f"the chain was removed from {self._chain.run_dir}", path=self._chain.run_dir)
            self._pipeline.report_failure("the chain is gone; a new one is started", error)
            self._pipeline.drop_full()
            self._chain.forget_tip()
            self._is_full_wanted = True

    def _start_full(self) -> None:
        """Begin to copy the tables in the background; the closing cut follows when all are copied."""
        self._is_full_wanted = False
        self._full_clock.restart()
        try:
            self._pipeline.start_full(self.trackers, trainer_state_bytes=self._trainer_state_bytes())
        except (CommitError, DirectoryBusyError) as error:
            self._pipeline.report_failure("full not started", error)
            self._is_full_wanted = self._chain.tip is None
            # Not at every step: when there is no chain, the full is tried when a delta would be.
            self._delta_clock.restart()

    def _trainer_state_bytes(self) -> int:
        self.progress = self.progress.with_registered(self.states.read())
        return len(self.progress.to_json())

    def _write_first_full(self) -> None:
        """Training has not begun, so this thread may wait for it. Raises CommitError."""
        self._pipeline.write_first_full(
            self.trackers,
            lambda: self._cut(is_closing=True),
            trainer_state_bytes=self._trainer_state_bytes(),
        )
