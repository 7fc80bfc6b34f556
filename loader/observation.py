"""What the updater tells of itself: one value for the status, and a line in the log when something changed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from hotdelta.chain import Position, Refused
from hotdelta.logs import event
from loader.follow.chain_view import ChainView
from loader.follow.lag_report import LagReport
from loader.model.served import Serving
from loader.model.undo_history import UndoHistory
from loader.status import Condition, Quarantined, RefusedManifest, State

logger = logging.getLogger(__name__)

MAX_REFUSED = 20
_CUT_OFF = (
    "nothing new can come: was the directory moved, is it not mounted, or has no trainer saved there yet?"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the last look found, for the status."""

    condition: Condition
    is_served: bool = False
    newest: Position | None = None
    pending_since: float | None = None
    undo_depth: int = 0
    undo_bytes: int = 0
    updates: int = 0
    pinned: Position | None = None
    commits_behind: int = 0
    held_back: int = 0
    quarantined: tuple[Quarantined, ...] = ()
    refused: tuple[RefusedManifest, ...] = ()

    def condition_now(self, *, is_served: bool) -> Condition:
        """The condition, unless it says why there was no model and there is one by now."""
        return Condition(State.FOLLOWING) if is_served and not self.is_served else self.condition


class Observation:
    """Belongs to the updater thread; `observed` may be read by any thread."""

    def __init__(
        self, *, serving: Serving, chain: ChainView, history: UndoHistory, report: LagReport
    ) -> None:
        self._serving = serving
        self._chain = chain
        self._history = history
        self._report = report
        self._told: frozenset[Refused] = frozenset()
        starting = Condition(State.WAITING, "the loader is starting")
        self.observed = Observed(starting, pinned=chain.orders.pin)

    def observe_update(self) -> None:
        """Called between two steps of a plan, which may have thousands: notes only what is cheap to find out."""
        self.observed = replace(
            self.observed,
            condition=Condition(State.FOLLOWING),
            is_served=True,
            undo_depth=len(self._history),
            undo_bytes=self._history.bytes,
            updates=self._report.updates,
            pinned=self._chain.orders.pin,
            quarantined=self._chain.quarantined,
        )

    def observe(self, condition: Condition) -> None:
        """How it stands after a look."""
        previous, served = self.observed, self._serving.current
        # First: whoever has read the reason in the status is told the same by an answer.
        self._serving.explain(condition.reason)
        behind = self._chain.first_after(served.node) if served else None
        self.observed = Observed(
            condition,
            is_served=served is not None,
            newest=self._chain.newest,
            pending_since=behind.created_at if behind else None,
            undo_depth=len(self._history),
            undo_bytes=self._history.bytes,
            updates=self._report.updates,
            pinned=self._chain.orders.pin,
            commits_behind=self._chain.commits_after(served.node) if served else 0,
            held_back=self._chain.held_back,
            quarantined=self._chain.quarantined,
            refused=tuple(
                RefusedManifest(item.path.name, item.reason) for item in self._chain.refused[:MAX_REFUSED]
            ),
        )
        if condition != previous.condition:
            self._tell(condition, is_served=served is not None)

    def _tell(self, condition: Condition, *, is_served: bool) -> None:
        """Waiting for the first model is the course of things; serving one while nothing new can come is not."""
        is_cut_off = is_served and condition.state is State.WAITING
        level = logging.WARNING if is_cut_off or condition.state is State.DEGRADED else logging.INFO
        more = {"hint": _CUT_OFF} if is_cut_off else {}
        event(logger, level, f"loader is {condition.state}", reason=condition.reason or "none", **more)

    def tell_refused(self) -> None:
        """Each manifest that cannot be used once, and again when it was gone or has another reason."""
        refused = self._chain.refused
        for item in refused:
            if item not in self._told:
                event(logger, logging.WARNING, "manifest cannot be used", path=item.path, reason=item.reason)
        self._told = frozenset(refused)
