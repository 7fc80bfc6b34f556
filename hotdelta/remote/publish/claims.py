"""Run numbers among all trainers of a store: each is given once, and whoever has the highest is the trainer.

A claim is an object that is put under a name that has none. It is never deleted, so that no number comes back.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import MAX_NUMBER, Position
from hotdelta.errors import ChainError, StoreError, SupersededError
from hotdelta.logs import event
from hotdelta.remote import layout
from hotdelta.remote.stores.contract import Store, put_once

logger = logging.getLogger(__name__)

# How long another trainer's claim may stay unseen while nothing is published.
CHECK_SECONDS = 10.0
_MAX_CLAIM_BYTES = 4096


def highest_run(store: Store, *, above: int = 0) -> int | None:
    """The highest run above this number that somebody claimed, or published without a claim (a copied chain)."""
    after = layout.claim_name(above) if above else ""
    claimed = [layout.claimed_run(entry.name) for entry in store.list_after(layout.CLAIMS, after)]
    runs = {run for run in claimed if run is not None}
    for kind in Kind:
        after = layout.log_name(kind, Position(above, MAX_NUMBER)) if above else ""
        published = (
            layout.position_of(entry.name) for entry in store.list_after(layout.log_prefix(kind), after)
        )
        runs |= {position.run for position in published if position is not None}
    return max((run for run in runs if run <= MAX_NUMBER), default=None)


class Claim:
    """One trainer's hold on a run number. Threads share it; only one of them begins with it.

    A trainer that begins while its store is away has a number that it may not publish under before the claim of it
    is in the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        require_fit: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`require_fit` raises UnfitStoreError when conditional puts of this store mean nothing."""
        self._store = store
        self._require_fit = require_fit
        self._clock = clock
        self._content = _describe_self()
        self._guard_claim = threading.Lock()
        self._run = 0
        # Nobody knows whether it is ours when the store did not answer.
        self._tried = 0
        self._is_held = False
        self._look_at = 0.0

    @property
    def run(self) -> int:
        return self._run

    @property
    def is_held(self) -> bool:
        return self._is_held

    def take(self, least: int) -> int:
        """A number of this or above, which nobody had and nobody gets. Raises StoreError, ChainError."""
        with self._guard_claim:
            self._require_fit()
            run = max(least, (highest_run(self._store) or 0) + 1)
            while not self._put(run):
                run += 1
            self._run, self._is_held = run, True
            self._look_at = self._clock() + CHECK_SECONDS
        return run

    def take_later(self, least: int) -> int:
        """The store is away: this number is this trainer's on its own machine, and is claimed by `require`.

        A higher one when `take` got as far as to ask for that: it may have been given, and the answer lost.
        """
        with self._guard_claim:
            self._run, self._is_held = max(least, self._tried), False
            self._look_at = 0.0
            return self._run

    def require(self) -> None:
        """Before something is published, and now and then: asks the store at most every CHECK_SECONDS.

        Raises SupersededError when another trainer has a higher number, or this one; StoreError.
        """
        with self._guard_claim:
            if self._is_held and self._clock() < self._look_at:
                return
            if not self._is_held:
                self._take_late()
            if (higher := highest_run(self._store, above=self._run)) is not None:
                raise self._superseded(higher)
            self._look_at = self._clock() + CHECK_SECONDS

    def _put(self, run: int) -> bool:
        if run > MAX_NUMBER:
            raise ChainError(
                f"{self._store.address} has a claim of the run {run - 1}, and no trainer is started that often",
                hint=f"delete the highest names under {layout.CLAIMS} in it, or use another address",
            )
        self._tried = run
        return put_once(self._store, layout.claim_name(run), self._content)

    def _take_late(self) -> None:
        self._require_fit()
        if not self._put(self._run):
            raise self._superseded(self._run)
        self._is_held = True
        event(logger, logging.INFO, "run claimed in the store", store=self._store.address, run=self._run)

    def _superseded(self, run: int) -> SupersededError:
        return SupersededError(
            f"another trainer took the run {run} of {self._store.address}, and this one has {self._run}: "
            f"{self._holder(run)}",
            hint="servers follow the other one; let only one train here, or give each an address of its own",
        )

    def _holder(self, run: int) -> str:
        try:
            content = self._store.get(layout.claim_name(run), max_bytes=_MAX_CLAIM_BYTES)
        except StoreError:
            return "unknown"
        return content.decode(errors="replace")


def _describe_self() -> bytes:
    """For people; and no two are equal."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    who = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "id": secrets.token_hex(8)}
    return json.dumps(who).encode()
