"""The saves of one run: cuts are taken here, and what becomes of them is noticed here.

What is due, and what a cut holds beside the variables, is for others to say.
"""

from __future__ import annotations

from collections.abc import Callable

from hotdelta.chain.format.position import Position
from hotdelta.errors import CommitError, ConfigurationError, DirectoryBusyError
from hotdelta.train.rows.cut import Cut
from hotdelta.train.rows.trackers import Trackers
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.save.clock import SaveClocks
from hotdelta.train.save.options import WriterStatus
from hotdelta.train.save.pipeline import SavePipeline


class Saves:
    """Takes cuts and hands them over, one delta at a time; a full is begun here and closed with a cut.

    Every method is called with the lock of the saver held, and only between `bind` and `release`.
    """

    def __init__(
        self,
        chain: ChainWriter,
        pipeline: SavePipeline,
        *,
        clocks: SaveClocks,
        take_cut: Callable[[], Cut | None],
        trainer_state_bytes: Callable[[], int],
        clock: Callable[[], float],
        status: WriterStatus,
    ) -> None:
        """`take_cut`: everything that changed, with the trainer's progress; it may wait for others, and raise.

        None: there was no moment between two steps.
        """
        self._chain = chain
        self._pipeline = pipeline
        self._clocks = clocks
        self._take_cut = take_cut
        self._trainer_state_bytes = trainer_state_bytes
        self._clock = clock
        self._status = status
        self._trackers: Trackers | None = None
        self._last_state = b""
        self.is_full_wanted = False

    @property
    def trackers(self) -> Trackers:
        if self._trackers is None:
            raise ConfigurationError(
                "the writer has not been started", hint="call start() before the first step"
            )
        return self._trackers

    def bind(self, trackers: Trackers) -> None:
        """From now on cuts are of these variables."""
        self.release()
        self._trackers = trackers

    def release(self) -> None:
        if self._trackers is not None:
            self._trackers.stop()
            self._trackers = None

    def begin(self, trainer_state: bytes) -> None:
        """Training begins, at what is saved."""
        self._last_state = trainer_state
        self._clocks.restart()

    @property
    def position(self) -> Position | None:
        """The newest committed position."""
        tip = self._chain.tip
        return tip.position if tip else None

    @property
    def is_waiting_for_writer(self) -> bool:
        """Nothing can be handed over before the delta in the making is written."""
        return self._pipeline.is_writing_delta

    def save_if_due(self, is_job_ready: Callable[[], bool]) -> None:
        self._collect()
        is_delta_due = self._clocks.delta.is_due()
        is_full_due = self._clocks.full.has_steps and self._clocks.full.is_due()
        if (is_full_due or (self.is_full_wanted and is_delta_due)) and not self._pipeline.has_full:
            self.start_full()
        if not self._pipeline.wants_closing_cut and not is_delta_due:
            return
        if self._pipeline.is_writing_delta:
            self._status.postponed += 1
            return
        # Before the other trainers stop for a cut, which without a chain only a full that is copied can take.
        self._notice_lost_chain()
        if self._chain.tip is None and not self._pipeline.wants_closing_cut:
            return
        if not is_job_ready():
            self._status.postponed += 1
            return
        self.cut(is_closing=self._pipeline.wants_closing_cut)

    def save(self) -> Position | None:
        """Commit a delta with everything up to now, and wait for it. Returns the newest committed position.

        With no chain to follow (it was removed while training) this is a full.
        """
        self.finish_delta()
        self._notice_lost_chain()
        if self._chain.tip is None:
            return self.save_full()
        self.cut(is_closing=self._pipeline.wants_closing_cut)
        self.finish_delta()
        return self.position

    def save_full(self) -> Position | None:
        """Commit a full (and its closing delta) with everything up to now, and wait for it."""
        self.finish_full()
        self._notice_lost_chain()
        self.start_full()
        self.finish_full()
        return self.position

    def finish(self) -> Position | None:
        """Save everything up to now, a delta first; then the full that is in the making, due or wanted."""
        self.save()
        self.finish_full()
        is_full_due = self._clocks.full.is_due() or self.is_full_wanted
        return self.save_full() if is_full_due else self.position

    def finish_delta(self) -> None:
        self._pipeline.wait_for_delta()
        self._collect()

    def finish_full(self) -> None:
        """Wait for the full in the making, taking its closing cut here."""
        self._pipeline.wait_for_full()
        self.finish_delta()
        if self._pipeline.wants_closing_cut:
            self.cut(is_closing=True)
        self.finish_delta()
        self._pipeline.wait_for_full()
        self._collect()

    def end(self) -> None:
        """Wait for what is being written. A full that has no closing cut yet is given up: nothing is saved here."""
        self.finish_delta()
        if not self._pipeline.is_closing_full:
            self._pipeline.drop_full()
        self.finish_full()

    def cut(self, *, is_closing: bool) -> None:
        """Take what changed and hand it to the writers. With no chain to follow only a full can take it."""
        if self._chain.tip is None and not is_closing:
            return
        started = self._clock()
        cut = self._take_cut()
        if cut is None:
            return
        self._clocks.delta.restart()
        if is_closing:
            self._clocks.full.note_saved()
        if cut.is_empty and cut.trainer_state == self._last_state and not is_closing:
            return
        self._last_state = cut.trainer_state
        stall = self._note_stall(started)
        try:
            self._pipeline.hand_over(cut, self.trackers, is_closing=is_closing, stall_seconds=stall)
        except BaseException:
            self.trackers.give_back(cut)
            raise

    def start_full(self) -> None:
        """Begin to copy the tables in the background; the closing cut follows when all are copied."""
        self.is_full_wanted = False
        self._clocks.full.restart()
        try:
            self._pipeline.start_full(self.trackers, trainer_state_bytes=self._trainer_state_bytes())
        except (CommitError, DirectoryBusyError) as error:
            self._pipeline.report_failed_full("full not started", error)
            self.is_full_wanted = self._chain.tip is None
            # Not at every step: when there is no chain, the full is tried when a delta would be.
            self._clocks.delta.restart()

    def write_first_full(self) -> None:
        """Training has not begun, so this thread may wait for it. Raises CommitError."""
        self._pipeline.write_first_full(
            self.trackers,
            lambda: self.cut(is_closing=True),
            trainer_state_bytes=self._trainer_state_bytes(),
        )

    def _note_stall(self, started: float) -> float:
        stall = self._clock() - started
        self._status.last_stall_seconds = stall
        self._status.longest_stall_seconds = max(self._status.longest_stall_seconds, stall)
        return stall

    def _collect(self) -> None:
        if not self._pipeline.collect(self.trackers):
            self._last_state = b""
            self.is_full_wanted = self.is_full_wanted or self._chain.tip is None

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
