"""What goes from a store, and when: first the name in the log, and after a while, for readers who had it, the files.

The trainer does it, after each full that it published. A replica that lags behind what is left takes a full.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.chain.store.retention import expired
from hotdelta.errors import ManifestError, ObjectMissingError
from hotdelta.logs import event
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.orders import OrderBox, Verb
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.trees import find_tree

logger = logging.getLogger(__name__)

# How long files stay whose name is gone: whoever read the name before fetches them meanwhile.
GRACE_SECONDS = 600.0
# How often is looked for files that no name leads to.
_SWEEP_SECONDS = 24 * 3600.0
_GETS_AT_ONCE = 8


class StoreRetention:
    """Of one trainer and one store; for the thread that publishes fulls. Every call may raise StoreError.

    `is_ours` says of a state whether its files are on their way there.
    """

    def __init__(
        self,
        store: Store,
        *,
        keep_fulls: int,
        is_ours: Callable[[Node], bool],
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._log = CommitLog(store)
        self._keep_fulls = keep_fulls
        self._is_ours = is_ours
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._known: dict[tuple[Kind, Position], Manifest] = {}
        # What nobody can read stays: a newer hotdelta may know what it is.
        self._unreadable: set[Position] = set()
        self._withdrawn: list[tuple[float, Manifest]] = []
        self._run = 0
        self._orphans: set[str] = set()
        self._swept_at: float | None = None
        self._is_second_look_due = False

    def withdraw_expired(self, *, run: int) -> None:
        """After a full of this run was published: the log keeps what is needed, and forgets the rest."""
        self._run = run
        self._read_log()
        gone = expired(
            tuple(self._known.values()), keep_fulls=self._keep_fulls, pinned=self._pinned_by_order()
        )
        for manifest in gone:
            self._log.withdraw(manifest)
            del self._known[(manifest.kind, manifest.position)]
            self._withdrawn.append((self._clock() + self._grace_seconds, manifest))
        if gone:
            event(logger, logging.INFO, "old commits withdrawn from the store", commits=len(gone))
        self.delete_what_is_over()

    def _pinned_by_order(self) -> Node | None:
        """The state that the fleet is ordered to be at. Not asked who signed it: at worst too much is kept."""
        try:
            order = OrderBox(self._store).newest(key=None)
        except ManifestError as error:
            event(logger, logging.WARNING, "an order to the fleet cannot be read", reason=error)
            return None
        return order.node if order is not None and order.verb is Verb.PIN else None

    def delete_what_is_over(self) -> None:
        """Now and then: files whose names were withdrawn long ago, and files that no name ever led to."""
        now = self._clock()
        over = [manifest for time_is_up, manifest in self._withdrawn if time_is_up <= now]
        for manifest in over:
            self._log.delete_files(manifest)
            self._withdrawn = [item for item in self._withdrawn if item[1] is not manifest]
        if self._run and self._is_sweep_due(now):
            self._sweep(now)

    def _is_sweep_due(self, now: float) -> bool:
        if self._swept_at is None:
            return True
        return now - self._swept_at >= (self._grace_seconds if self._is_second_look_due else _SWEEP_SECONDS)

    def _sweep(self, now: float) -> None:
        """What was no name's twice, with a while between, is left over of a publish that was killed."""
        self._read_log()
        orphans = self._find_orphans()
        left_over = orphans & self._orphans if self._is_second_look_due else set()
        for name in sorted(left_over):
            self._store.delete(name)
        if left_over:
            event(logger, logging.INFO, "files of unfinished publishes removed", files=len(left_over))
        self._orphans = orphans - left_over
        self._swept_at, self._is_second_look_due = now, not self._is_second_look_due and bool(orphans)

    def _find_orphans(self) -> set[str]:
        """Only of runs before ours: a trainer with a higher one is not our business, and our own are on their way."""
        named = {layout.data_name(m, file.name) for m in self._known.values() for file in m.files}
        named |= {layout.data_name(m, file.name) for _, m in self._withdrawn for file in m.files}
        return {
            entry.name
            for entry in self._store.list_after(layout.DATA)
            if entry.name not in named and self._may_go(entry.name)
        } | self._orphans_of_graphs()

    def _may_go(self, name: str) -> bool:
        node = layout.node_of(name)
        if node is None or node.position in self._unreadable:
            return False
        return node.position.run < self._run and not self._is_ours(node)

    def _orphans_of_graphs(self) -> set[str]:
        prefix = f"{layout.TREES_DATA}{names.SERVING_GRAPH_PREFIX}"
        found: dict[str, set[str]] = {}
        for entry in self._store.list_after(layout.TREES_DATA):
            if entry.name.startswith(prefix):
                found.setdefault(entry.name.split("/")[1], set()).add(entry.name)
        for name, objects in found.items():
            try:
                tree = find_tree(self._store, name)
            except ManifestError:
                # Which of them it names is not known: a newer hotdelta may read it.
                objects.clear()
                continue
            if tree is not None:
                objects -= {tree.object_name(file) for file in tree.files}
        return set().union(*found.values())

    def _read_log(self) -> None:
        there = {(kind, position) for kind in Kind for position in self._log.positions_after(kind, None)}
        self._known = {key: manifest for key, manifest in self._known.items() if key in there}
        new = sorted(there - self._known.keys())
        with ThreadPoolExecutor(_GETS_AT_ONCE, "hotdelta-publish-retention") as pool:
            for key, manifest in zip(new, pool.map(self._read, new), strict=True):
                if manifest is not None:
                    self._known[key] = manifest
                else:
                    self._unreadable.add(key[1])

    def _read(self, key: tuple[Kind, Position]) -> Manifest | None:
        try:
            return self._log.read(*key)[0]
        except (ManifestError, ObjectMissingError):
            return None
