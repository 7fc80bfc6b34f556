"""When the saves of a Session are taken: after its steps, and in its pauses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.compat.v1.chain.save_schedule import PolicyTimer, SaveSchedule
from hotdelta.compat.v1.chain.session_chain import SessionChain
from hotdelta.compat.v1.recording.step_marks import UNSEEN
from hotdelta.compat.v1.recording.training_graph import TrainingGraph
from hotdelta.logs import event
from hotdelta.tensorflow_internals import is_closed
from hotdelta.train.save.pauses import PAUSE_SECONDS, PauseSaver, Quiet

logger = logging.getLogger(__name__)

# How often the steps of other workers are looked at while the chief makes none.
LOOK_SECONDS = 0.25


class RunWatch:
    """Whether a run is writing. The thread that trains calls `enter` and `leave`; any thread may ask.

    Each run has a ticket, a higher one than all before it, which it shows in the graph before it writes anything.
    """

    def __init__(self, graph: TrainingGraph) -> None:
        self._marks = graph.marks
        self._is_cluster = graph.roll is not None
        self._ticket = 0
        self._open: int | None = None
        self._thread = 0
        self._is_said = False
        self.why_blind: str | None = None
        if self._marks is None and not self._is_cluster:
            self.why_blind = "the graph was finalized before it could be marked where its runs begin to write"

    @property
    def is_cluster(self) -> bool:
        """Others train, too, and nothing tells when."""
        return self._is_cluster

    def enter(self) -> dict[Any, Any]:
        """Before a run. Returns what is to be fed to it."""
        thread = threading.get_ident()
        if self._open is not None and self._thread != thread:
            self.why_blind = "several threads train in this Session"
        self._ticket += 1
        self._open, self._thread = self._ticket, thread
        # A number of Python is looked at twice by TensorFlow: every step pays for this.
        return {} if self._marks is None else {self._marks.ticket: np.int64(self._ticket)}

    def leave(self) -> None:
        """After a run that did not raise. One that did is over when the next one begins."""
        self._open = None

    def quiet(self, session: Any) -> Quiet | None:
        """None while a run may be writing, or one that no hook has seen may be."""
        if self._is_cluster:
            return Quiet(None)
        if self._marks is None or self.why_blind is not None:
            return None
        # In this order: a run that ends, or begins to write, in between makes two answers differ.
        begun = int(session.run(self._marks.begun))
        ticket, opened = self._ticket, self._open
        if begun == UNSEEN:
            self._say_unseen()
            return None
        if self._marks.hidden is not None:
            return Quiet(ticket) if opened is None else None
        return Quiet(begun) if opened is None or begun < opened else None

    def _say_unseen(self) -> None:
        if self._ticket and not self._is_said:
            self._is_said = True
            event(
                logger,
                logging.INFO,
                "a save that is due waits for the next step",
                reason="something writes to what is saved, and no hook hears of it",
            )


class ScheduledSaves:
    """The chain of one CheckpointSaverHook, and when it is saved to: decides for training and for its pauses.

    The training thread calls every method. While it waits, `hotdelta-pauses` takes the deltas that are due; the lock of
    the chain is held by whichever of them is at it.
    """

    def __init__(
        self,
        make_chain: Callable[..., SessionChain],
        graph: TrainingGraph,
        schedule: SaveSchedule,
        *,
        step_tensor: Any,
        before_delta: Callable[[Any, int], None],
        has_progress: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`before_delta` is called with the Session and the step, by the thread that takes the delta.

        `has_progress`: that of workers is saved, too, and they are asked after a step of the chief.
        """
        self._pauses = PauseSaver(self)
        self.chain = make_chain(on_idle=self._pauses.look, before_close=self._pauses.stop)
        self._lock = self.chain.lock
        self.full_timer = PolicyTimer(schedule.full, clock)
        self._delta_timer = PolicyTimer(schedule.delta, clock)
        self.watch = RunWatch(graph)
        self._step_tensor = step_tensor
        self._before_delta = before_delta
        self._has_progress = has_progress
        self._clock = clock
        self._session: Any = None
        self.told_steps = 0
        self.pause_seconds = PAUSE_SECONDS
        self._step = 0
        self._committed: list[Manifest] = []
        self._is_asleep = False
        self._look_at = 0.0
        self._given_up_at = -1

    def begin(self, session: Any) -> None:
        """The chain was started for this Session."""
        self._session = session
        self.watch.leave()
        self._step = int(session.run(self._step_tensor))
        self._delta_timer.update_last_triggered_step(self._step)
        self._pauses.start()

    def stop_pauses(self) -> None:
        """Before a Session ends, and before another one begins. Nothing of it is saved any more but by this thread."""
        self._pauses.stop()

    def note_run(self, next_step: int) -> None:
        """A run is over; so many steps were made by now, or fewer."""
        self.watch.leave()
        with self._lock:
            self.told_steps += 1
            self._step = next_step
            self._look_at = self._clock() + LOOK_SECONDS if self._looks_at_others else 0.0
            self.chain.note_step()
            if self._is_asleep and self._delta_timer.seconds_to_trigger(next_step) is not None:
                self._is_asleep = False
                self._pauses.look()

    def save_if_due(self, session: Any) -> int | None:
        """Begin a delta that is due, after a run. Returns the step of a full that is due instead, for `save_full`."""
        with self._lock:
            timers = {Kind.FULL: self.full_timer, Kind.DELTA: self._delta_timer}
            if not any(timer.should_trigger_for_step(self._step) for timer in timers.values()):
                return None
            step = self._step = int(session.run(self._step_tensor))
            due = next((kind for kind, timer in timers.items() if timer.should_trigger_for_step(step)), None)
            if due is None or not self.chain.is_ready(due, step):
                return None
            timers[due].update_last_triggered_step(step)
            if due is Kind.FULL:
                return step
            self.begin_delta(session, step)
            return None

    def begin_delta(self, session: Any, step: int, is_moment: Callable[[], bool] = lambda: True) -> bool:
        """As of the chain; `before_delta` is called first."""
        with self._lock:
            self._before_delta(session, step)
            started = self._clock()
            try:
                return self.chain.begin_delta(session, is_moment)
            finally:
                self.pause_seconds = max(PAUSE_SECONDS, self._clock() - started)

    def save_full(self, session: Any) -> Manifest | None:
        """None when it was not committed."""
        with self._lock:
            self._note(self.chain.finish(session))
            manifest = self.chain.save_full(session)
            if manifest is not None:
                self._delta_timer.update_last_triggered_step(manifest.step)
            return manifest

    def collect(self, session: Any) -> list[Manifest]:
        """The deltas that were committed since this was last asked."""
        with self._lock:
            self._note(self.chain.collect(session))
            committed, self._committed = self._committed, []
            return committed

    def finish(self, session: Any) -> list[Manifest]:
        """As `collect`, with the one that is being written."""
        with self._lock:
            self.chain.wait()
            return self.collect(session)

    def _note(self, committed: Manifest | None) -> None:
        if committed is not None:
            self._committed.append(committed)

    def why_blind(self) -> str | None:
        return "workers are asked after a step of the chief" if self._has_progress else self.watch.why_blind

    def seconds_to_save(self) -> float | None:
        with self._lock:
            if self.chain.is_writing:
                return None
            seconds = self._seconds_to_look()
            self._is_asleep = seconds is None
            return seconds

    def _seconds_to_look(self) -> float | None:
        if is_closed(self._session) or self._given_up_at == self.told_steps:
            return None
        if self.chain.has_failed:
            return self._delta_timer.seconds_left
        seconds = self._delta_timer.seconds_to_trigger(self._step)
        if self._looks_at_others:
            # Nobody tells of their steps.
            seconds = 0.0 if self._delta_timer.is_by_steps else self._delta_timer.seconds_left or 0.0
        return None if seconds is None else max(seconds, self._look_at - self._clock())

    @property
    def _looks_at_others(self) -> bool:
        return self.watch.is_cluster and not self._has_progress

    def save_in_pause(self) -> bool:
        with self._lock:
            if is_closed(self._session):
                return False
            try:
                return self._save_in_pause(self._session)
            except (tf.errors.OpError, RuntimeError):
                if not is_closed(self._session):
                    raise
                return False

    def _save_in_pause(self, session: Any) -> bool:
        quiet = self.watch.quiet(session)
        if quiet is None:
            return False
        if quiet.steps is None:
            self._look_at = self._clock() + LOOK_SECONDS
        is_again = self.chain.has_failed
        self._note(self.chain.collect(session))
        step = self._step = int(session.run(self._step_tensor))
        is_due = is_again or self._delta_timer.should_trigger_for_step(step)
        if not is_due or not self.chain.is_ready(Kind.DELTA, step):
            return True
        if quiet.steps is not None and self.chain.is_lost:
            # A new chain begins with a full, and those are left to training.
            self._given_up_at = self.told_steps
            return True
        if self.begin_delta(session, step, lambda: self.watch.quiet(session) == quiet):
            self._delta_timer.update_last_triggered_step(step)
        return True
