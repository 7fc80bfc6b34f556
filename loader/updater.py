"""The one thread that changes anything: looks at the directories, and brings the served model to what it finds."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from hotdelta.chain import Plan, RestoreFull
from hotdelta.errors import ApplyError, HotdeltaError
from hotdelta.logs import FailureLog, about, event
from loader.exports.swap import ExportSwap
from loader.follow.chain_view import ChainView
from loader.follow.follower import Follower
from loader.follow.lag_report import LagReport
from loader.follow.wake import Look, Wake
from loader.follow.watch import Watch
from loader.model.served import Served, Serving
from loader.observation import Observation, Observed
from loader.orders.commands import CommandQueue
from loader.status import Condition, State

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RETRY_SECONDS = 0.25
STOP_SECONDS = 60.0
# A digest is counted in a fifth of the time of one processor.
_REST_OF_DIGEST = 4
_ALL_IS_WELL = Condition(State.FOLLOWING)
_EXPORT_INCREMENTAL = "export with --save-incr-model to serve them"
# Without the number of deltas, which is in the status: each of them would be a line in the log.
_TAKES_FULLS = f"this export takes fulls only, so newer deltas are not applied; {_EXPORT_INCREMENTAL}"


class Updater:
    """Owns all mutation. `start` and `stop` belong to the owner; `observed` may be read by any thread."""

    def __init__(
        self,
        *,
        serving: Serving,
        chain: ChainView,
        follower: Follower,
        exports: ExportSwap,
        watch: Watch,
        wake: Wake,
        commands: CommandQueue,
        report: LagReport,
        clock: Callable[[], float],
        poll_seconds: float,
        between_looks: Callable[[], None],
        told: Mapping[str, str],
    ) -> None:
        """`told`: what every event of its thread says."""
        self._serving = serving
        self._chain = chain
        self._follower = follower
        self._exports = exports
        self._watch = watch
        self._wake = wake
        self._commands = commands
        self._report = report
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._between_looks = between_looks
        self._told = told
        self._next_poll = 0.0
        self._told_of_deltas: int | None = None
        self._digest_failures = FailureLog(logger)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotdelta-updater", daemon=True)
        self._observation = Observation(serving=serving, chain=chain, history=follower.history, report=report)

    @property
    def observed(self) -> Observed:
        return self._observation.observed

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._watch.start()
        self._commands.open()
        self._thread.start()

    def stop(self) -> None:
        """Raises ApplyError when the thread does not end in time; then the model is left as it is."""
        self._is_stopping.set()
        self._commands.close()
        self._wake.look()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                raise ApplyError(f"the updater did not stop within {STOP_SECONDS:.0f} seconds")
        self._watch.stop()
        self._follower.close()
        self._exports.close()
        self._report.close()

    def order(self, call: Callable[[], Result]) -> Result:
        """Run a call in the updater thread and wait for it; afterwards `observed` tells what came of it.

        Raises what it raises, NotReadyError when the updater does not run.
        """

        def carry_out() -> Result:
            # What was applied before the order is told before it, too.
            self._report.flush()
            result = call()
            if (served := self._serving.current) is not None:
                self._observation.observe(self._at_rest(served, None))
            return result

        return self._commands.ask(carry_out)

    def _run(self) -> None:
        about(**self._told)
        look: Look = None
        while not self._is_stopping.is_set():
            self.look_once(look)
            try:
                look = self._sleep()
            except Exception as error:
                # As in `look_once`.
                logger.exception("unexpected failure of the updater")
                look = None
                self._observation.observe(_unexpected(error))
                self._is_stopping.wait(RETRY_SECONDS)

    def look_once(self, look: Look = None) -> None:
        """One turn of the loop: what was asked for, then what is new. Not while the thread runs it."""
        try:
            self._obey()
            condition = self._look(look)
            self._between_looks()
        except HotdeltaError as error:
            condition = Condition(State.DEGRADED, str(error))
        except Exception as error:
            # The edge of the loop: whatever it is, what is served goes on serving.
            logger.exception("unexpected failure of the updater")
            condition = _unexpected(error)
        self._observation.observe(condition)

    def _obey(self) -> None:
        before = self._serving.current
        self._commands.run_waiting()
        if before is not None and self._serving.current is None:
            self._reload_torn()

    def _sleep(self) -> Look:
        """Until somebody says look, or the next poll, which looks at everything.

        Lag lines are completed meanwhile, the digest of what is served is counted, and what is held back is thought of.

        Hints do not put the poll off: with a commit every second nobody would ever look at everything again.
        """
        end = self._next_poll
        if self._chain.retry_reason:
            end = min(end, self._clock() + RETRY_SECONDS)
        while not self._is_stopping.is_set():
            self._report.flush_complete()
            left = end - self._clock()
            if left <= 0:
                return None
            if self._report.is_pending:
                left = min(left, RETRY_SECONDS)
            if self._chain.held_back:
                left = min(left, RETRY_SECONDS)
            if self._wake.wait(min(left, self._count_digest())):
                return self._wake.take()
            if self._chain.held_back and self._chain.look_at_held_back():
                return frozenset()
        return None

    def _count_digest(self) -> float:
        """A little more of the digest of what is served. How long to wait before the next little."""
        served = self._serving.current
        if served is None or not served.model.metadata.is_incremental:
            return math.inf
        start = self._clock()
        try:
            is_going_on = served.model.digest.advance(served.model)
        except Exception as error:  # noqa: BLE001 - also for want of memory: updates do not need it
            served.model.digest.forget()
            self._digest_failures.failed("the digest of the tables cannot be counted", reason=repr(error))
            is_going_on = False
        else:
            self._digest_failures.worked("the digest of the tables is counted again")
        return _REST_OF_DIGEST * (self._clock() - start) if is_going_on else math.inf

    def _look(self, look: Look) -> Condition:
        served = self._serving.current
        if look is None or served is None or self.observed.condition != _ALL_IS_WELL:
            try:
                return self._look_at_everything()
            finally:
                self._next_poll = self._clock() + self._poll_seconds
        # The everyday case, in time that does not depend on how much lies in the directories.
        self._chain.look_at(look)
        return self._follow_what_is_new(served)

    def _look_at_everything(self) -> Condition:
        # Watch before looking: what is committed in between wakes us again.
        self._watch.refresh()
        self._chain.look()
        self._observation.tell_refused()
        before = self._serving.current
        why_none = self._exports.consider()
        served = self._serving.current
        if served is None:
            return Condition(State.WAITING, why_none)
        if before is None or before.model is not served.model:
            self._follower.history.clear()
        return self._follow_what_is_new(served)

    def _follow_what_is_new(self, served: Served) -> Condition:
        return self._follow(served) if served.model.metadata.is_incremental else self._follow_fulls(served)

    def _follow(self, served: Served) -> Condition:
        while True:
            found = self._chain.plan_from(served.node, served.model.metadata, self._follower.history.nodes)
            if self._has_to_wait(found):
                return Condition(State.FOLLOWING, "a full has to wait: a newer export is being loaded")
            is_done = self._follower.follow(found.steps, self._on_update)
            after = self._serving.current
            if after is None:
                return self._reload_torn()
            if is_done:
                return self._at_rest(after, found.problem)
            if self._chain.retry_reason or self._is_stopping.is_set() or self._commands.is_waiting:
                return Condition(State.FOLLOWING, self._chain.retry_reason)
            served = after

    def _has_to_wait(self, found: Plan) -> bool:
        """A full may need a second model, and an export that is being loaded is one. What was ordered goes first."""
        is_room_taken = self._exports.is_loading and self._chain.orders.pin is None
        return is_room_taken and any(isinstance(step, RestoreFull) for step in found.steps)

    def _follow_fulls(self, served: Served) -> Condition:
        """Without the incremental subgraph a newer full is loaded beside: slower and larger, but nobody waits."""
        found = self._chain.plan_from(served.node, served.model.metadata)
        if found.steps:
            if waiting := self._exports.reload():
                return Condition(State.FOLLOWING, f"a newer full is on its way: {waiting}")
            served = self._serving.current or served
        if not self._chain.deltas_after(served.node):
            return self._at_rest(served, found.problem)
        self._tell_of_deltas(served.version.export_version)
        condition = self._at_rest(served, None)
        return Condition(State.FOLLOWING, _TAKES_FULLS) if condition == _ALL_IS_WELL else condition

    def _at_rest(self, served: Served, problem: HotdeltaError | None) -> Condition:
        """How it stands when every step that could be taken was taken."""
        pin = self._chain.orders.pin
        if pin is not None:
            reason = f"pinned at {pin} by {self._chain.orders.pinned_by}; newer commits wait for a resume"
            return Condition(State.PINNED, f"{reason}; {problem}" if problem else reason)
        # What is wrong with a state says more than that the newest one needs it.
        reason = self._chain.unusable_after(served.node) or str(problem or "")
        if reason:
            return Condition(State.DEGRADED, reason)
        if self._chain.is_empty:
            reason = f"no checkpoint in {self._chain.run_dir}; serving what was loaded"
            return Condition(State.WAITING, reason)
        return Condition(State.FOLLOWING)

    def _reload_torn(self) -> Condition:
        self._follower.history.clear()
        self._exports.forget_served()
        self._wake.look()
        return Condition(State.WAITING, "an update failed half-way; the export is loaded again")

    def _on_update(self, served: Served) -> bool:
        """Called between two steps, of which there may be thousands: cheap, and the place to stop."""
        self._report.add(served)
        self._observation.observe_update()
        self._between_looks()
        return not self._is_stopping.is_set() and not self._commands.is_waiting

    def _tell_of_deltas(self, export_version: int) -> None:
        if export_version != self._told_of_deltas:
            self._told_of_deltas = export_version
            phrase = "this export cannot take deltas"
            event(logger, logging.WARNING, phrase, version=export_version, hint=_EXPORT_INCREMENTAL)


def _unexpected(error: Exception) -> Condition:
    return Condition(State.DEGRADED, f"unexpected failure: {error!r}")
