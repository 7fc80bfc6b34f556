"""The engine of saving: cuts are taken here, when they are due, and what becomes of them is noticed here.

One engine for the Keras callback, for DeltaWriter and for the Sessions of TF1. What a cut holds, and when no step is
under way, is for its subclasses to say.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Listing
from hotdelta.errors import CommitError, DirectoryBusyError, UnsavedError
from hotdelta.logs import FailureLog, event
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.background import BackgroundWorker, CallersWorker
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.save.clock import SaveClocks
from hotdelta.train.save.figures import SaveFigures
from hotdelta.train.save.full_save import FullState
from hotdelta.train.save.options import WriterOptions, WriterStatus
from hotdelta.train.save.pauses import PAUSE_SECONDS, PauseSaver, Quiet
from hotdelta.train.save.pipeline import DeltaState, SavePipeline
from hotdelta.train.save.telling import SaveTelling
from hotdelta.train.save.trained import Trained

logger = logging.getLogger(__name__)

Engine = TypeVar("Engine", bound="SaveEngine")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def locked(
    method: Callable[Concatenate[Engine, Arguments], Result],
) -> Callable[Concatenate[Engine, Arguments], Result]:
    """With the lock of the engine held, so that no other thread saves meanwhile."""

    @functools.wraps(method)
    def call(self: Engine, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self.lock:
            return method(self, *args, **kwargs)

    return call


class SaveEngine(Trained):
    """Takes cuts and hands them over, one delta at a time; a full is begun here and closed with a cut.

    The training thread calls every method. While it waits for data, `hotdelta-pauses` saves what is due: `lock` is held
    by whichever of them is at it. The threads of the pipeline write. `told_steps`: how often steps were told.
    `pauses` is started when training begins, and stopped before what is trained goes away.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        options: WriterOptions,
        disk: Disk,
        clock: Callable[[], float],
        full_worker: CallersWorker | None = None,
    ) -> None:
        """`full_worker`: what writes fulls, in place of a thread of its own."""
        self.options, self.status = options, WriterStatus()
        self.lock = threading.RLock()
        self.told_steps = 0
        self.is_full_wanted = False
        self._clock = clock
        self.pauses = PauseSaver(self)
        self._quiet: Quiet | None = None
        self._quiet_at_last_cut: Quiet | None = None
        # Whoever waits with the training thread gives up then.
        self.is_told_to_stop: Callable[[], bool] = lambda: False
        self._room_failures = FailureLog(logger, clock)
        self.figures = SaveFigures()
        self._chain = ChainWriter(run_dir, keep_fulls=options.keep_fulls, disk=disk)
        self._pipeline = SavePipeline(
            self,
            self._chain,
            delta_worker=BackgroundWorker("hotdelta-delta-writer", on_idle=self.pauses.look),
            full_worker=full_worker or BackgroundWorker("hotdelta-full-writer", on_idle=self.pauses.look),
            clock=clock,
            status=self.status,
            figures=self.figures,
            telling=SaveTelling(options.telling, run_dir, self.figures, self.status),
        )
        self._clocks = SaveClocks(
            options, clock, count_rows=self.count_touched_rows, find_place=self.find_place
        )

    @property
    def position(self) -> Position | None:
        """The newest committed position."""
        tip = self._chain.tip
        return tip.position if tip else None

    def count_steps(self, steps: int) -> bool:
        """Tell that steps were made. True: `save_if_due` may have something to do.

        Raises SupersededError when another trainer went on with the chain of a store.
        """
        self._chain.require_current()
        self.told_steps += 1
        self._clocks.add(steps=steps)
        return self._pipeline.has_news or self._clocks.may_be_due()

    def is_full_due(self) -> bool:
        """Of what the last full has already none is, unless one is wanted: when a delta would be, not at every step."""
        is_by_clock = self._clocks.full.has_steps and self._clocks.full.is_due()
        is_due = is_by_clock or (self.is_full_wanted and self._clocks.delta.is_due())
        return is_due and self._pipeline.full_state is FullState.NONE

    @locked
    def save_if_due(self) -> None:
        """Take the cut that is due, on the training thread or in a pause. The pause is O(touched rows)."""
        self._collect()
        is_delta_due = self._clocks.delta.is_due()
        if (is_delta_due or self.is_full_due()) and not self._has_room():
            self._postpone()
            return
        if self._pipeline.writes_fulls_aside and self.is_full_due():
            self.start_full()
        if not is_delta_due and self._pipeline.full_state is not FullState.COPIED:
            return
        if self._pipeline.delta_state is DeltaState.WRITING:
            self.status.postponed += 1
            return
        # Before the other trainers stop for a cut, which without a chain only a full that is copied can take.
        self._notice_lost_chain()
        is_closing = self._pipeline.full_state is FullState.COPIED
        if self._chain.tip is None and not is_closing:
            return
        if not self.is_job_ready():
            self.status.postponed += 1
            return
        self.cut(is_closing=is_closing)

    def _has_room(self) -> bool:
        """Whether the spool, if it is one, takes more; where training is to wait for that, after a while it does."""
        if self._chain.is_spool_full and self._chain.waits_for_room and self._quiet is None:
            phrase = "the spool is full; training waits until its store has taken more"
            event(logger, logging.WARNING, phrase, directory=self._chain.run_dir)
            self._chain.wait_for_room(self.is_told_to_stop)
            self._chain.require_current()
        return not self._chain.is_spool_full

    def _postpone(self) -> None:
        """Nothing is lost: what is touched goes on to be counted, and is in the next delta."""
        self.status.postponed += 1
        self._clocks.delta.restart()
        self._room_failures.failed("the spool is full; saves are postponed", directory=self._chain.run_dir)

    @property
    def pause_seconds(self) -> float:
        """How long a pause must last: a cut that takes longer than the pause is in vain."""
        return max(PAUSE_SECONDS, self.status.last_stall_seconds)

    @locked
    def seconds_to_save(self) -> float | None:
        """For whoever does not train: until something is due. None: a writing thread, or a step, will end first."""
        if self._pipeline.delta_state is DeltaState.WRITING:
            return None
        seconds = self._seconds_to_look()
        return None if math.isinf(seconds) else seconds

    def _seconds_to_look(self) -> float:
        return 0.0 if self._pipeline.has_news else self._clocks.seconds_to_look()

    @locked
    def save_in_pause(self) -> bool:
        """What `save_if_due` does, on another thread than the one that trains. False: a step is under way."""
        quiet = self.quiet()
        if quiet is None:
            return False
        if self._pipeline.has_news:
            self._quiet_at_last_cut = None  # What it had may have to be saved again.
        elif quiet.is_alone and quiet == self._quiet_at_last_cut:
            self._clocks.delta.restart()  # Nothing was trained since.
            return True
        self.save_in_quiet(quiet, self.save_if_due)
        return True

    def save_in_quiet(self, quiet: Quiet, save: Callable[[], None]) -> None:
        """What it cuts is given back when a step has begun meanwhile."""
        self._quiet = quiet
        try:
            save()
        finally:
            self._quiet = None

    @locked
    def save(self) -> Position | None:
        """Commit a delta, or a full when the chain was removed, with everything up to now, and wait for it.

        What cannot be committed is logged, and due again: `require_saved` raises then.
        """
        self.finish_delta()
        self._notice_lost_chain()
        if self._chain.tip is None:
            return self.save_full()
        self.cut(is_closing=self._pipeline.full_state is FullState.COPIED)
        self.finish_delta()
        return self.position

    @locked
    def save_full(self) -> Position | None:
        """Commit a full (and its closing delta) with everything up to now, and wait for it."""
        self.finish_full()
        self._notice_lost_chain()
        self.start_full()
        self.finish_full()
        return self.position

    @locked
    def require_saved(self) -> None:
        """After a save. Raises UnsavedError when it failed, and says what would be lost."""
        reason = self._pipeline.unsaved_reason
        if reason is not None:
            raise UnsavedError(
                reason.message,
                steps=max(0, self.find_place().step - self._pipeline.saved_step),
                rows=self.known_rows(),
                position=self.position,
                path=self._chain.run_dir,
            ) from reason

    def wait_until_published(self) -> None:
        """After the last save: until the store, if there is one, has everything, bounded.

        Raises UnpublishedError when it has not, SupersededError when it never will.
        """
        self._chain.wait_until_published()

    def open_chain(self) -> Listing:
        """Take the directory. Raises DirectoryBusyError, ConfigurationError."""
        listing = self._chain.open()
        self.status.publishing = self._chain.publishing
        return listing

    def finish_delta(self) -> None:
        self._pipeline.wait_for_delta()
        self._collect()

    def finish_full(self) -> None:
        """Wait for the full in the making, taking its closing cut here."""
        self._pipeline.wait_for_full()
        self.finish_delta()
        if self._pipeline.full_state is FullState.COPIED:
            self.cut(is_closing=True)
        self.finish_delta()
        self._pipeline.wait_for_full()
        self._collect()

    def cut(self, *, is_closing: bool) -> None:
        """Take what changed and hand it to the writers. With no chain to follow only a full can take it."""
        if self._chain.tip is None and not is_closing:
            return
        started = self._clock()
        cut = self._take(self._quiet, is_closing=is_closing)
        if cut is None:
            return
        self._clocks.delta.restart()
        if is_closing:
            self._clocks.full.note_saved()
        elif not self.is_news(cut):
            return
        stall = self._note_stall(started)
        self._room_failures.worked("saves go on")
        try:
            self._pipeline.hand_over(cut, is_closing=is_closing, stall_seconds=stall)
        except BaseException:
            self.give_back(cut)
            raise

    def _take(self, quiet: Quiet | None, *, is_closing: bool) -> Cut | None:
        """None: there was no moment between two steps."""
        cut = self.take_closing_cut(quiet) if is_closing else self.take_cut(quiet)
        if cut is not None and quiet is not None and self.quiet() != quiet:
            self.undo(cut)
            return None
        self._quiet_at_last_cut = quiet
        return cut

    def start_full(self) -> None:
        """Begin to copy the tables in the background; the closing cut follows when all are copied."""
        self.is_full_wanted = False
        self._clocks.full.restart()
        try:
            self._pipeline.start_full()
        except (CommitError, DirectoryBusyError) as error:
            self._pipeline.report_failed_full("full not started", error)
            self.is_full_wanted = self._chain.tip is None
            # Not at every step: when there is no chain, the full is tried when a delta would be.
            self._clocks.delta.restart()

    def write_first_full(self) -> None:
        """Training has not begun, so this thread may wait for it. Raises CommitError."""
        full = self._pipeline.new_full()
        full.copy()
        if full.state is FullState.COPIED:
            self.cut(is_closing=True)
        self._pipeline.wait_for_full()
        self._pipeline.drop_full()
        if full.error is not None:
            raise full.error

    def _note_stall(self, started: float) -> float:
        stall = self._clock() - started
        self.status.last_stall_seconds = stall
        self.figures.stall.observe(stall)
        self.status.longest_stall_seconds = max(self.status.longest_stall_seconds, stall)
        return stall

    def _collect(self) -> None:
        if not self._pipeline.collect():
            self.is_full_wanted = self.is_full_wanted or self._chain.tip is None
        if self._chain.take_wish_for_full():
            self.is_full_wanted = True

    def _notice_lost_chain(self) -> None:
        """When the chain was removed under us a delta would have no parent: the next save is a full.

        Only while no delta is being written.
        """
        if self._chain.is_tip_lost():
            error = CommitError(f"the chain was removed from {self._chain.run_dir}", path=self._chain.run_dir)
            self._pipeline.report_lost_chain(error)
            self._pipeline.drop_full()
            self._chain.forget_tip()
            self.is_full_wanted = True

    def release(self) -> None:
        """End the threads, and give the directory back. Not with the lock held: `hotdelta-pauses` may wait for it.

        Raises UnpublishedError.
        """
        self.pauses.stop()
        self._pipeline.stop()
        self._chain.close()
