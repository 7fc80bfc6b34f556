"""The mirror of a chain: one thread that asks the store what is new, and brings what its follower needs."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node
from hotdelta.chain.history.plan import plan
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store.retention import delete, sweep
from hotdelta.directory_lock import LockedDirectory
from hotdelta.errors import (
    CommitError,
    ManifestError,
    ObjectDamagedError,
    ObjectMissingError,
    StoreError,
)
from hotdelta.logs import FailureLog, about, event
from hotdelta.remote.arrivals import ArrivedFiles, fetch_files, fetch_schema, is_whole
from hotdelta.remote.mirror.choice import (
    Following,
    Holdings,
    Way,
    choose,
    count_bytes,
    key_of,
    of_another_history,
    to_remove,
)
from hotdelta.remote.mirror.damage import Damages
from hotdelta.remote.mirror.fetch_ahead import FetchAhead
from hotdelta.remote.mirror.place import WORDING
from hotdelta.remote.mirror.reach import Reach
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.mirror.status import MirrorStatus
from hotdelta.remote.mirror.stored_commits import StoredCommits
from hotdelta.remote.stores.contract import Store

logger = logging.getLogger(__name__)

STOP_SECONDS = 60.0
# So long a follower that asks for a full may stay where it is before it is given one.
STUCK_SECONDS = 1.0
_PIECES_AT_ONCE = 8
_MANIFESTS_AT_ONCE = 8
_LISTING_JITTER = 0.2


def _nobody() -> Following:
    return Following()


class Mirror:
    """Keeps `directory` in step with a store. `start`, `stop` belong to the owner; the rest is for any thread.

    Nothing but its thread writes to the directory. Whatever happens to it or to the store, what is here stays whole:
    a follower may read it at any time.
    """

    def __init__(
        self,
        store: Store,
        directory: Path,
        settings: MirrorSettings,
        *,
        follower: Callable[[], Following] = _nobody,
        on_arrival: Callable[[Path | None], None] = lambda _: None,
        distrust: Callable[[Manifest], str] | None = None,
        told: dict[str, str] | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`follower` says where it is, and is asked often. `on_arrival` hears of each manifest that has come, and of
        None when something went. `told`: what every event of its thread says.

        Raises ConfigurationError when the directory cannot be used, or is another mirror's.
        """
        self._store = store
        self._directory = directory
        self._settings = settings
        self._follower = follower
        self._on_arrival = on_arrival
        self._told = told or {}
        self._disk = disk or Disk()
        self._clock = clock
        self._place = LockedDirectory(directory, WORDING)
        self._scanner = Scanner(directory)
        self._local: tuple[Manifest, ...] = ()
        self._log_pool = ThreadPoolExecutor(_MANIFESTS_AT_ONCE, thread_name_prefix="hotdelta-mirror-log")
        self._pools = {
            kind: ThreadPoolExecutor(_PIECES_AT_ONCE, thread_name_prefix=f"hotdelta-mirror-{kind}")
            for kind in Kind
        }
        self._stored = StoredCommits(store, pool=self._log_pool, clock=wall_clock, distrust=distrust)
        self._reach = Reach(
            settings, store.address, poll_seconds=settings.poll_seconds, wall_clock=wall_clock
        )
        self._damages = Damages(patience_seconds=settings.damage_seconds, clock=clock)
        self._local_failures = FailureLog(logger, clock)
        self._news = threading.Event()
        self._is_stopping = threading.Event()
        self._ahead = FetchAhead(
            self._fetch, disk=self._disk, when_done=self._news.set, name="hotdelta-mirror-fetch"
        )
        self._ways: tuple[Way, ...] = ()
        self._decided_on: object = None
        self._schemas: set[str] = set()
        self._had_room: object = None
        self._next_ask = self._next_listing = self._next_local_try = 0.0
        self._full_arrived_at = self._stuck_since = 0.0
        self._stuck_at: Node | None = None
        self._local_problem = ""
        self._local_version = 0
        self._counting = threading.Lock()
        self._fetched_bytes = self._fetched_commits = 0
        self._thread = threading.Thread(target=self._run, name="hotdelta-mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when its threads have ended; a request to the store is waited for."""
        self._is_stopping.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        for pool in (*self._pools.values(), self._log_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._ahead.close()
        self._place.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def look_again(self) -> None:
        """Do not wait for the next poll."""
        self._next_ask = 0.0
        self._news.set()

    def seen_at(self, manifest: Manifest) -> float | None:
        """When it was first seen in the store; None when it was not, or too long ago."""
        return self._stored.seen_at(manifest)

    def status(self) -> MirrorStatus:
        return MirrorStatus(
            address=self._store.address,
            directory=self._directory,
            is_reached=self._reach.is_reached,
            answered_at=self._reach.answered_at,
            problem=self._reach.problem or self._local_problem,
            newest=self._stored.newest,
            fetched_bytes=self._fetched_bytes,
            fetched_commits=self._fetched_commits,
            local_bytes=count_bytes(self._local),
            failures=self._reach.failures,
            damaged=self._damages.told,
        )

    def _run(self) -> None:
        about(**self._told)
        is_prepared = False
        while not self._is_stopping.is_set():
            self._news.clear()
            try:
                if not is_prepared:
                    self._prepare()
                    is_prepared = True
                self._take_turn()
            except Exception:
                # The edge of the loop: whatever it is, what is here goes on being served.
                logger.exception("unexpected failure while mirroring")
                self._is_stopping.wait(self._settings.retry_seconds)
            self._news.wait(max(0.0, self._next_ask - self._clock()))

    def _prepare(self) -> None:
        """What a kill left behind goes."""
        listing = self._scanner.scan()
        self._local = listing.manifests
        sweep(self._directory, listing, self._disk)
        self._remove_torn()

    def _take_turn(self) -> None:
        following = self._follower()
        if self._clock() >= self._next_ask:
            self._ask(following)
        following = self._with_patience(following)
        self._decide(following)
        self._take_what_arrived()
        self._decide(following)
        self._begin()
        self._make_room(following)

    def _ask(self, following: Following) -> None:
        try:
            self._look(following)
            self._reach.answered()
        except StoreError as error:
            self._reach.failed(error)
        self._next_ask = self._clock() + self._reach.pause_seconds()

    def _look(self, following: Following) -> None:
        """Raises StoreError."""
        has_news = self._stored.look_at_hint()
        if self._clock() >= self._next_listing:
            self._local = self._scanner.scan().manifests
            self._local_version += 1
            self._remove_torn()
            self._stored.look_at_all(self._local)
            self._forget_other_history()
            has_news = True
            pause = self._settings.list_seconds * (1 - _LISTING_JITTER * random.random())  # noqa: S311 - not secret
            self._next_listing = self._clock() + pause
        elif not self._stored.has_hint:
            self._stored.look_for_new()
            has_news = True
        if has_news:
            self._read(following)

    def _read(self, following: Following) -> None:
        base = following.node or plan(None, (*self._local, *self._ahead.manifests)).target
        after = None if following.wants_full or base is None else base.position
        broken = [node for kind, node in self._damages.broken() if kind is Kind.FULL]
        self._stored.read(after, pin=following.pin, broken=broken)

    def _with_patience(self, following: Following) -> Following:
        """What it has may be enough: it is given a full when it has gone no further, whatever deltas come meanwhile."""
        is_full_coming = any(manifest.kind is Kind.FULL for manifest in self._ahead.manifests)
        if not following.wants_full or is_full_coming or following.node != self._stuck_at:
            self._stuck_since, self._stuck_at = self._clock(), following.node
        is_stuck = self._clock() - max(self._stuck_since, self._full_arrived_at) >= STUCK_SECONDS
        wants_full = following.wants_full and is_stuck and self._has_newer_full()
        return replace(following, wants_full=wants_full)

    def _has_newer_full(self) -> bool:
        """Whether it is worth to look for a way by a full: among thousands of deltas that takes long."""
        newest = max((m.position for m in self._local if m.kind is Kind.FULL), default=None)
        return any(
            m.kind is Kind.FULL and (newest is None or m.position > newest) for m in self._stored.manifests
        )

    def _decide(self, following: Following) -> None:
        """Choose anew when something has changed that the choice rests on."""
        if self._basis(following) == self._decided_on:
            return
        broken = self._damages.broken()
        stored = [manifest for manifest in self._stored.manifests if key_of(manifest) not in broken]
        self._remove(of_another_history(self._local, stored), "the store has another history")
        holdings = Holdings(self._local, self._ahead.manifests, stored)
        self._ways = choose(following, holdings, max_bytes=self._settings.max_bytes)
        self._ahead.drop_others(self._ways)
        self._decided_on = self._basis(following)

    def _basis(self, following: Following) -> object:
        """While something is to be brought it does not matter how far the follower has come."""
        node = None if self._ways else following.node
        versions = self._stored.version, self._local_version
        return versions, self._damages.broken(), following.pin, following.wants_full, node

    def _begin(self) -> None:
        if not self._reach.is_reached or self._clock() < self._next_local_try:
            return
        for way in self._ways:
            for manifest in way:
                if self._ahead.is_under_way(manifest):
                    continue
                if self._damages.is_waiting(manifest) or not self._ahead.has_room_for(manifest):
                    break
                self._ahead.begin(manifest, self._stored.content_of(manifest))

    def _fetch(self, manifest: Manifest, content: bytes) -> ArrivedFiles | None:
        """In threads of `_ahead`."""
        return fetch_files(
            self._store,
            manifest,
            content,
            self._directory,
            pool=self._pools[manifest.kind],
            disk=self._disk,
            roles=names.SERVING_ROLES,
            on_bytes=self._count_bytes,
        )

    def _count_bytes(self, count: int) -> None:
        with self._counting:
            self._fetched_bytes += count

    def _take_what_arrived(self) -> None:
        """In the order of its way, so that a follower never finds a link before the one that it follows."""
        ways = []
        for way in self._ways:
            taken = 0
            for manifest in way:
                if not self._ahead.is_done(manifest) or not self._take(manifest):
                    break
                taken += 1
            ways.append(way[taken:])
        self._ways = tuple(way for way in ways if way)

    def _take(self, manifest: Manifest) -> bool:
        """Whether it is here now."""
        try:
            arrived = self._ahead.take(manifest)
            if arrived is not None:
                self._bring_schema(manifest)
                arrived.commit(disk=self._disk)
        except ObjectMissingError as error:
            self._note_missing(manifest, error)
        except (ObjectDamagedError, ManifestError) as error:
            self._damages.add(manifest, error)
        except StoreError as error:
            self._reach.failed(error)
            self._next_ask = self._clock() + self._reach.pause_seconds()
        except CommitError as error:
            self._note_local_failure(error)
        else:
            self._note_arrival(manifest)
            return True
        self._decided_on = None
        return False

    def _bring_schema(self, manifest: Manifest) -> None:
        """A part of the model is served by what it says. Raises StoreError, CommitError."""
        if manifest.schema not in self._schemas and fetch_schema(
            self._store, manifest.schema, self._directory, disk=self._disk
        ):
            self._schemas.add(manifest.schema)

    def _note_arrival(self, manifest: Manifest) -> None:
        path = directory_of(self._directory, manifest.kind) / names.manifest_name(manifest.prefix)
        self._local = self._scanner.add([path]).manifests
        self._stored.note_arrival(manifest)
        self._damages.forget(manifest)
        self._fetched_commits += 1
        if manifest.kind is Kind.FULL:
            self._full_arrived_at = self._clock()
        self._local_problem = ""
        self._local_failures.worked("the mirror can be written again")
        self._on_arrival(path)

    def _note_missing(self, manifest: Manifest, error: ObjectMissingError) -> None:
        """Retention takes the name out of the log first: without it nothing is wrong."""
        try:
            is_there = self._stored.ask_for(manifest) is not None
        except StoreError as failure:
            self._reach.failed(failure)
            return
        if is_there:
            self._damages.add(manifest, error)
        else:
            self._stored.forget(manifest)
            self._damages.forget(manifest)
            # What else is gone, and which full there is instead.
            self._next_listing = self._next_ask = 0.0

    def _note_local_failure(self, error: CommitError) -> None:
        self._local_problem = str(error)
        self._local_failures.failed("the mirror cannot be written", reason=error)
        self._next_local_try = self._clock() + self._settings.retry_seconds

    def _make_room(self, following: Following) -> None:
        if (basis := (following.node, self._local)) == self._had_room:
            return
        self._had_room = basis
        going = to_remove(following, self._local, max_bytes=self._settings.max_bytes)
        self._remove(going, "")

    def _remove_torn(self) -> None:
        """What lies in a cache may be tidied up by others: a commit without its files is fetched again."""
        torn = [
            manifest
            for manifest in self._local
            if not is_whole(self._directory, manifest, names.SERVING_ROLES)
        ]
        self._remove(tuple(torn), "files of them are gone")

    def _forget_other_history(self) -> None:
        """Somebody began anew under the address: there the newest of what is here is another state, or all is older.

        Raises StoreError.
        """
        newest = self._stored.newest
        if newest is None or not self._local:
            return
        ours = self._local[-1]
        theirs = self._stored.ask_for(ours)
        if theirs != ours.node and (theirs is not None or newest < ours.position):
            self._remove(self._local, "the store has another history")

    def _remove(self, manifests: tuple[Manifest, ...], reason: str) -> None:
        """`reason`: why it is worth telling."""
        if not manifests:
            return
        if reason:
            event(
                logger,
                logging.WARNING,
                "commits are removed from the mirror",
                commits=len(manifests),
                newest=max(manifest.position for manifest in manifests),
                reason=reason,
            )
        try:
            for manifest in manifests:
                delete(self._directory, manifest, self._disk)
        except CommitError as error:
            self._note_local_failure(error)
        self._local = self._scanner.scan().manifests
        self._local_version += 1
        if reason:
            # What takes its place may not have been read.
            self._next_listing = self._next_ask = 0.0
        self._on_arrival(None)
