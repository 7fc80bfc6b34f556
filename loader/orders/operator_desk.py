"""What an operator may order of a serving model: go back, stay, go on, take a quarantined update after all."""

from __future__ import annotations

import logging
from dataclasses import replace

from hotdelta.chain import Node, Position
from hotdelta.errors import ApplyError, HotdeltaError, NotReadyError, RequestError
from hotdelta.logs import counted, event
from loader.checks.sanity_gate import SanityGate
from loader.exports.values import ExportQuarantine
from loader.follow.chain_view import ChainView
from loader.follow.follower import Follower
from loader.follow.lag_report import LagReport
from loader.model.served import Served, Serving
from loader.orders.order_book import OrderBook

logger = logging.getLogger(__name__)

_LIST_POSITIONS = "give a position that `hotdelta chain` lists for the checkpoint directory"


class OperatorDesk:
    """Carries orders out. Every method belongs to the updater thread and returns the state that is served then, if any.

    An order that cannot be carried out raises RequestError and changes nothing. One that was carried out is kept in
    the book before it is answered.
    """

    def __init__(
        self,
        *,
        serving: Serving,
        chain: ChainView,
        follower: Follower,
        sanity: SanityGate,
        exports: ExportQuarantine,
        book: OrderBook,
        report: LagReport,
    ) -> None:
        self._serving = serving
        self._chain = chain
        self._follower = follower
        self._sanity = sanity
        self._exports = exports
        self._book = book
        self._report = report

    def rollback(self, position: Position) -> Node:
        """Go back to a position, stay there, and mark what was undone as bad until resumed."""
        live = self._live.node
        if position >= live.position:
            raise RequestError(
                f"{position} is not before {live}, which is served",
                hint="give an earlier position, or pin to stay",
            )
        self._require_good(position)
        undone = self._chain.nodes_between(position, live.position) | {live}
        undone |= {node for node in self._follower.history.nodes if node.position > position}
        # What an earlier rollback undid stays bad too, until resumed.
        self._go_to(position, undone=undone | self._chain.orders.bad)
        event(logger, logging.WARNING, "rolled back", position=position, before=live, undone=len(undone))
        return self._live.node

    def rollback_deltas(self, deltas: int) -> Node:
        """The same, by a number of updates."""
        if deltas < 1:
            raise RequestError(f"cannot go back by {deltas} deltas", hint="give 1 or more")
        live = self._live.node
        earlier = self._follower.history.before(live)
        node = earlier[deltas - 1] if deltas <= len(earlier) else self._chain.ancestor_of(live, deltas)
        if node is None:
            raise RequestError(
                f"the position {counted(deltas, 'delta')} before {live} is not there any more",
                hint=_LIST_POSITIONS,
            )
        return self.rollback(node.position)

    def pin(self, position: Position | None) -> Node:
        """Serve exactly this position, or what is served now, until resumed."""
        live = self._live.node
        wanted = position or live.position
        self._require_good(wanted)
        self._go_to(wanted, undone=self._chain.orders.bad)
        event(logger, logging.WARNING, "pinned", position=wanted)
        return self._live.node

    def resume(self) -> Node | None:
        """Follow again, also over what was rolled back. Also when nothing can be served because of a pin."""
        served = self._serving.current
        self._chain.orders.resume()
        self._book.keep()
        event(logger, logging.WARNING, "resumed", position=served.node if served else None)
        return served.node if served else None

    def release(self, position: Position) -> Node | None:
        """Take a quarantined update or export whatever its values are."""
        node = self._chain.quarantine.release(position) or self._exports.release(position)
        if node is None:
            raise RequestError(
                f"{position} is not in quarantine for its values",
                hint="GET /model/version lists what is; damaged files and rolled back states cannot be released",
            )
        self._sanity.release(node)
        self._chain.orders.released |= {node}
        self._book.keep()
        event(logger, logging.WARNING, "released from quarantine", position=position)
        served = self._serving.current
        return served.node if served else None

    def _require_good(self, position: Position) -> None:
        if any(node.position == position for node in self._chain.orders.bad):
            raise RequestError(f"{position} was rolled back", hint="resume first")

    def _go_to(self, position: Position, *, undone: frozenset[Node]) -> None:
        orders = self._chain.orders
        before = replace(orders)
        orders.hold(position, bad=undone)
        try:
            self._reach(position)
        except HotdeltaError:
            served = self._serving.current
            if served is not None and served.node.position != position:
                orders.pin, orders.bad = before.pin, before.bad
                orders.is_pin_a_setting = before.is_pin_a_setting
            raise
        finally:
            self._book.keep()

    def _reach(self, position: Position) -> None:
        served = self._live
        metadata = served.model.metadata
        if not metadata.is_incremental and served.node.position != position:
            raise RequestError(
                "this export takes fulls only, so it cannot go to another position",
                hint="export with --save-incr-model, or start a server with --pin",
            )
        self._chain.look()
        found = self._chain.plan_from(served.node, metadata, self._follower.history.nodes)
        if found.problem is not None:
            raise RequestError(str(found.problem), hint=_LIST_POSITIONS)
        self._follower.follow_order(found.steps, self._on_update)
        if self._live.node.position != position:
            raise ApplyError(
                f"{position} could not be reached: {self._follower.failure}", hint=_LIST_POSITIONS
            )

    def _on_update(self, served: Served) -> bool:
        self._report.add(served)
        return True

    @property
    def _live(self) -> Served:
        served = self._serving.current
        if served is None:
            raise NotReadyError("no model is served yet")
        return served
