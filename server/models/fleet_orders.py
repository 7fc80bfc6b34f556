"""Orders that the whole fleet is given through its store, carried out by this server.

A position that is ordered may not be here yet: it is asked for again and again, while whoever brings files is told that
it is wanted. Orders that this server is given by itself hold until the fleet is given the next one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotdelta.chain import Disk, Kind, Node, Position, SigningKey
from hotdelta.chain.store.small_file import replace_file
from hotdelta.errors import ConfigurationError, HotdeltaError, ManifestError, ObjectMissingError, StoreError
from hotdelta.logs import FailureLog, event
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.orders import Order, OrderBox, Verb
from hotdelta.remote.stores.contract import Store

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
STOP_SECONDS = 10.0
KEPT_FILE = "fleet-order.json"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Obeyed:
    """The last order that was carried out here. `pinned`: where it said to be; None: at the newest."""

    number: int = 0
    pinned: Position | None = None


class Obeys(Protocol):
    """A served model, as far as orders go. Each raises HotdeltaError when it cannot be done now."""

    def pin(self, position: Position | None) -> Node: ...

    def resume(self) -> Node | None: ...


class FleetOrders:
    """Of one model. `first` before the model is made, then `start` and `stop`; `wanted` is for any thread.

    `state_dir`: where the last order that was obeyed is kept: it holds at a start without the store, and a store from
    which orders were removed is not believed.
    """

    def __init__(
        self,
        store: Store,
        key: SigningKey,
        *,
        state_dir: Path | None = None,
        poll_seconds: float = POLL_SECONDS,
        disk: Disk | None = None,
    ) -> None:
        """Raises ConfigurationError when what was kept cannot be read."""
        self._store = store
        self._box = OrderBox(store)
        self._key = key
        self._poll_seconds = poll_seconds
        self._disk = disk or Disk()
        self._path = state_dir / KEPT_FILE if state_dir is not None else None
        self._kept = _Obeyed() if self._path is None else _read(self._path)
        self._seen = self._kept.number
        self._order: Order | None = None
        self._is_done = True
        self._has_begun = False
        self._obeying: Callable[[Order], object] | None = None
        self._failures, self._waiting = FailureLog(logger), FailureLog(logger)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotdelta-orders", daemon=True)

    @property
    def wanted(self) -> Position | None:
        """Where the fleet was ordered to be, so that it is brought here; None: at the newest."""
        return self._order.pinned if self._order is not None else None

    def first(self) -> Position | None:
        """The position to begin at, before anything newer is served: that of the newest order, or, while the store is
        away, of the one that this server obeyed last. The store is asked again later.
        """
        before = self._seen
        try:
            order = self._begin()
        except (StoreError, ManifestError) as error:
            event(
                logger,
                logging.ERROR,
                "orders to the fleet cannot be read",
                store=self._store.address,
                reason=error,
                begins_at=self._kept.pinned or "the newest",
            )
            return self._kept.pinned
        if order is None:
            return None
        # To follow again has to be carried out when it came while this server was down: the model may keep its pin.
        if order.verb is Verb.PIN or not 0 < before < order.number:
            self._finish(order)
        return order.pinned

    def obey(self, model: Obeys) -> None:
        """Who carries orders out; before `start`."""

        def carry_out(order: Order) -> object:
            return model.resume() if order.verb is Verb.RESUME else model.pin(order.node.position)

        self._obeying = carry_out

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._is_stopping.wait(self._poll_seconds):
            try:
                self.look()
            except (StoreError, ManifestError) as error:
                self._failures.failed(
                    "orders to the fleet cannot be read", store=self._store.address, reason=error
                )
            except Exception:
                # The edge of the loop: whatever it is, the order is tried again, and the next one is read.
                logger.exception("unexpected failure while an order to the fleet was carried out")
            else:
                self._failures.worked("orders to the fleet are read again")

    def look(self) -> None:
        """Reads the newest order if it is new, and carries out what was not. Raises StoreError, ManifestError."""
        if not self._has_begun:
            before, order = self._seen, self._begin()
            if order is not None and order.verb is Verb.RESUME and order.number == before:
                self._finish(order)
        elif (newer := self._box.find_newer(self._seen, key=self._key)) is not None:
            self._require_of_this_chain(newer)
            self._take(newer)
        if self._order is not None and not self._is_done:
            self._carry_out(self._order)

    def _begin(self) -> Order | None:
        """The order that holds, also one that was obeyed before a restart. Raises StoreError, ManifestError."""
        order = self._box.newest(key=self._key)
        if order is None or order.number < self._seen:
            self._has_begun = True
            self._require_none_missing(order)
            return None
        self._require_of_this_chain(order)
        self._has_begun = True
        self._take(order)
        return order

    def _take(self, order: Order) -> None:
        self._order, self._seen, self._is_done = order, order.number, False
        event(
            logger,
            logging.WARNING if order.verb is Verb.PIN else logging.INFO,
            "the fleet was given an order",
            order=order.number,
            verb=order.verb,
            position=order.node.position,
            by=order.given_by,
        )

    def _carry_out(self, order: Order) -> None:
        if self._obeying is None:
            return
        try:
            self._obeying(order)
        except HotdeltaError as error:
            # The files may be on their way.
            self._waiting.failed("an order to the fleet waits", order=order.number, reason=error)
            return
        self._waiting.worked("the order to the fleet is carried out")
        self._finish(order)

    def _finish(self, order: Order) -> None:
        self._is_done = True
        obeyed = _Obeyed(order.number, order.pinned)
        if self._path is None or obeyed == self._kept:
            return
        document = {
            "format_version": _FORMAT_VERSION,
            "number": obeyed.number,
            "pinned": str(obeyed.pinned) if obeyed.pinned else None,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._disk, self._path, json.dumps(document).encode())
        except OSError as error:
            event(logger, logging.ERROR, "the last order cannot be kept", path=self._path, reason=error)
        else:
            self._kept = obeyed

    def _require_none_missing(self, order: Order | None) -> None:
        if self._seen:
            newest = order.number if order is not None else 0
            raise ManifestError(
                f"the store has orders up to {newest}, and this server has obeyed {self._seen}",
                hint=f"who removed them? give a new one, or delete {self._path}",
            )

    def _require_of_this_chain(self, order: Order) -> None:
        """An order that was signed for another chain names a state that this one does not have."""
        log = CommitLog(self._store)
        for kind in Kind:
            try:
                found = log.read(kind, order.node.position)[0].node
            except ObjectMissingError:
                continue
            if found != order.node:
                raise ManifestError(
                    f"order {order.number} means another state of {order.node.position} than this chain has"
                )
            return
        if order.verb is Verb.PIN:
            raise ManifestError(f"order {order.number} means {order.node}, which this chain does not have")


def _read(path: Path) -> _Obeyed:
    """Raises ConfigurationError."""
    try:
        document = json.loads(path.read_bytes())
        number, pinned = document["number"], document.get("pinned")
        if document["format_version"] != _FORMAT_VERSION or type(number) is not int:
            raise ValueError("it is of another format")
        return _Obeyed(number, Position.parse(pinned) if pinned is not None else None)
    except FileNotFoundError:
        return _Obeyed()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ManifestError) as error:
        raise ConfigurationError(
            f"{path}, where the last order is kept, cannot be used: {error}",
            hint="move it away to believe the store",
        ) from error
