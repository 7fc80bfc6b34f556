"""Sends what one trainer commits to one store, in its own threads: deltas in their order, and fulls beside them.

`committed` (on this machine) and `published` (in the store) are two facts. Training goes on whatever the store does:
only a full spool, and another trainer that took the chain over, are told to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Node, Position
from hotdelta.errors import (
    ChainError,
    HotdeltaError,
    NameTakenError,
    StoreError,
    SupersededError,
    UnfitStoreError,
    UnpublishedError,
)
from hotdelta.logs import FailureLog, counted, event
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.departures import Departures
from hotdelta.remote.publish.backlog import backlog, positions_in, require_same_history
from hotdelta.remote.publish.claims import CHECK_SECONDS, Claim
from hotdelta.remote.publish.figures import PublishFigures
from hotdelta.remote.publish.folds import Folds
from hotdelta.remote.publish.outbox import Outbox
from hotdelta.remote.publish.retention import StoreRetention
from hotdelta.remote.publish.spool import (
    WAIT,
    Spool,
    SpoolOptions,
    find_spool,
    is_found_fit,
    mark,
    refuse_unpublished,
)
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.stores.probe import require_fit

logger = logging.getLogger(__name__)

# Files of one commit that are put side by side; each kind has its own, so that a large full holds no delta back.
_PUTS_AT_ONCE = 4
_FIRST_PAUSE_SECONDS = 0.2
_MOST_PAUSE_SECONDS = 15.0
# A file may just be replaced when it is read (a serving graph); after so many tries it is damaged.
_TRIES_OF_DAMAGED = 4
# A request that is under way may take as long as the store's client waits; the process does not wait for it.
_JOIN_SECONDS = 5.0


class Publisher:
    """Belongs to one trainer, from `begin` to `close`.

    `begin`, `wait` and `close` are for the thread that trains, `committed` for those that commit. Two threads send.
    `failure`: why nothing will be published any more.
    """

    def __init__(
        self,
        store: Store,
        run_dir: Path,
        *,
        options: SpoolOptions,
        keep_fulls: int,
        require_fit: Callable[[], None] = lambda: None,
    ) -> None:
        self.figures = PublishFigures(store.address)
        self.failure: HotdeltaError | None = None
        self._is_full_wanted = False
        self.claim = Claim(store, require_fit=require_fit)
        self._store = store
        self._run_dir = run_dir
        self._options = options
        self._log = CommitLog(store)
        self._stop = threading.Event()
        self._outbox = Outbox(max_bytes=options.max_bytes)
        self.figures.count_unpublished = self._outbox.unpublished
        self._pools = {
            kind: ThreadPoolExecutor(_PUTS_AT_ONCE, f"hotdelta-publish-{kind}-files") for kind in Kind
        }
        self._departures = Departures(
            store, run_dir, pool=self._pools[Kind.DELTA], fulls_pool=self._pools[Kind.FULL]
        )
        self._folds = Folds(run_dir, above=options.fold_deltas_above, disk=Disk())
        self._retention = StoreRetention(store, keep_fulls=keep_fulls, is_ours=self._is_on_its_way)
        self._guard_start = threading.Lock()
        self._begun: tuple[Sequence[Manifest], Node | None] = ((), None)
        # What an earlier process, or a try that failed, may have sent in part.
        self._sent_in_part: set[tuple[Kind, Position]] = set()
        self._threads: list[threading.Thread] = []
        self._has_waited = False
        self._is_told = False

    def claim_run(self, least: int, *, may_begin_alone: bool) -> int:
        """A run number of this or above that no trainer of this store had or gets.

        When the store is away: a number that is claimed as soon as it is back, and before anything is published;
        unless the trainer may not begin alone, because it has nothing here to go on from. Then it raises StoreError.
        """
        try:
            return self.claim.take(least)
        except StoreError as error:
            if not (may_begin_alone and error.retryable):
                raise
            run = self.claim.take_later(least)
            phrase = "the store is away, and cannot give a run number; it is asked again before anything is published"
            event(logger, logging.WARNING, phrase, run=run, store=self._store.address, reason=error)
            return run

    def begin(self, manifests: Sequence[Manifest], tip: Node | None) -> None:
        """A run begins, whose number is claimed: what leads to `tip` and is not in the store goes first."""
        if self._threads:
            return
        self._begun = (tuple(manifests), tip)
        self._outbox.begin(manifests)
        self._threads = [
            threading.Thread(target=self._run, args=(kind,), name=f"hotdelta-publish-{kind}s", daemon=True)
            for kind in Kind
        ]
        for thread in self._threads:
            thread.start()

    def expect_full(self, position: Position) -> None:
        """Before the delta is committed that closes it."""
        self._outbox.note_fulls([position])

    def committed(self, manifest: Manifest) -> None:
        self._has_waited = False
        self._outbox.add([manifest])

    def published_of(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Those of them that need not stay for the store."""
        kept = self._outbox.positions()
        return [manifest for manifest in manifests if (manifest.kind, manifest.position) not in kept]

    @property
    def is_spool_full(self) -> bool:
        return self.failure is None and self._outbox.is_full()

    @property
    def waits_for_room(self) -> bool:
        return self._options.when_full == WAIT

    def take_wish_for_full(self) -> bool:
        """Once for each commit that was passed over."""
        wished, self._is_full_wanted = self._is_full_wanted, False
        return wished

    def wait_for_room(self, is_over: Callable[[], bool]) -> None:
        """Until the spool has room, something else is to be done, or nothing will be published any more."""
        self._outbox.wait_for_room(lambda: is_over() or self.failure is not None)

    def require_current(self) -> None:
        """Every step asks. Raises SupersededError, or what else ends publishing for good."""
        if self.failure is not None:
            self._is_told = True
            raise self.failure

    def wait(self) -> None:
        """Until everything is published, bounded. Raises UnpublishedError, and what `require_current` raises.

        When that was in vain, the next call does not wait again unless something was committed meanwhile.
        """
        seconds = 0.0 if self._has_waited else self._options.publish_timeout_secs
        is_empty = self._outbox.wait_until_empty(seconds, lambda: self.failure is not None)
        self.require_current()
        if not is_empty:
            self._has_waited = True
            raise self._unpublished()

    def close(self) -> None:
        """Waits as `wait`, then ends the threads. Raises as that; a failure that was told is not told again."""
        try:
            if self._threads and not (self.failure is not None and self._is_told):
                self.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the threads, whatever is left to publish."""
        self._stop.set()
        self._outbox.close()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        if not any(thread.is_alive() for thread in self._threads):
            self._store.close()
        self._threads = []

    def _run(self, kind: Kind) -> None:
        """On the thread of this kind."""
        trouble = _Trouble(self._stop, self.figures, kind)
        is_over = False
        try:
            self._decide(trouble)
            while not self._stop.is_set() and self.failure is None:
                manifest = self._outbox.next(kind, timeout_seconds=CHECK_SECONDS)
                if manifest is None:
                    self._look_around(kind)
                    continue
                manifest = self._choose(manifest)
                if self._send(manifest, trouble):
                    self._outbox.note_published(manifest)
                    self._keep_house(kind)
            is_over = True
        except (RuntimeError, CancelledError):
            # What was under way for longer than `stop` waits finds that its pool is shut down.
            is_over = self._stop.is_set()
            if not is_over:
                raise
        finally:
            if not is_over:
                self._fail(
                    HotdeltaError(
                        f"thread hotdelta-publish-{kind}s ended with an exception",
                        hint="its traceback was printed; please report it",
                    )
                )

    def _decide(self, trouble: _Trouble) -> None:
        """Which of the commits that lay here at the start the store does not have. One thread finds out for both."""
        with self._guard_start:
            manifests, tip = self._begun
            while not (self._stop.is_set() or self._outbox.is_decided or self.failure is not None):
                try:
                    self.claim.require()
                    there = positions_in(self._log) if manifests else dict.fromkeys(Kind, ())
                    require_same_history(self._log, manifests, there)
                except UnfitStoreError as error:
                    self._fail(error)
                except StoreError as error:
                    trouble.wait(error)
                except HotdeltaError as error:
                    self._fail(error)
                else:
                    missing = backlog(manifests, tip, there)
                    self._folds.take_up(missing)
                    self._sent_in_part |= self._begun_before(missing)
                    self._outbox.note_fulls(there[Kind.FULL])
                    self._outbox.decide(missing)
                    if missing:
                        phrase = "publishing what was left"
                        event(logger, logging.INFO, phrase, commits=len(missing), store=self._store.address)

    def _begun_before(self, missing: Sequence[Manifest]) -> set[tuple[Kind, Position]]:
        """Deltas go one after the other: an earlier process has sent of the first, or of what that was folded into."""
        deltas = [manifest for manifest in missing if manifest.kind is Kind.DELTA][:1]
        fold = self._folds.current
        return {
            *((manifest.kind, manifest.position) for manifest in missing if manifest.kind is Kind.FULL),
            *((manifest.kind, manifest.position) for manifest in ([fold.manifest] if fold else deltas)),
        }

    def _choose(self, manifest: Manifest) -> Manifest:
        """The next one, or what it and others are folded into."""
        if manifest.kind is Kind.FULL:
            return manifest
        waiting, fulls = self._outbox.waiting()
        is_begun = (manifest.kind, manifest.position) in self._sent_in_part
        return self._folds.in_place_of(waiting, fulls, is_begun=is_begun)

    def _send(self, manifest: Manifest, trouble: _Trouble) -> bool:
        """False: it is not there, and publishing ends, or goes on without this fold. Else it is, or never will be."""
        key, fold = (manifest.kind, manifest.position), self._folds.current
        is_fold = fold is not None and manifest is fold.manifest
        send = self._departures.send_rest if key in self._sent_in_part else self._departures.send
        damaged = 0
        while not self._stop.is_set() and self.failure is None:
            try:
                self.claim.require()
                send(manifest, lies_in=self._folds.directory if is_fold else None)
                self._departures.tell_head()
            except (SupersededError, NameTakenError) as error:
                self._fail(_superseded(error))
            except StoreError as error:
                trouble.wait(error)
            except ChainError as error:
                damaged += 1
                if damaged == _TRIES_OF_DAMAGED:
                    if is_fold:
                        self._folds.give_up()
                        return False
                    self._pass_over(manifest, error)
                    return True
                trouble.pause()
            else:
                trouble.is_over()
                self._note_published(manifest)
                return True
            self._sent_in_part.add(key)
            send = self._departures.send_rest
        return False

    def _note_published(self, manifest: Manifest) -> None:
        self._sent_in_part.discard((manifest.kind, manifest.position))
        lag, folded = self.figures.count(manifest), self._folds_published(manifest)
        event(
            logger,
            logging.INFO,
            f"{manifest.kind} published",
            position=manifest.position,
            bytes=manifest.total_bytes,
            lag_ms=lag * 1000,
            **({"deltas": folded} if folded else {}),
        )

    def _folds_published(self, manifest: Manifest) -> int:
        """How many deltas went with it."""
        folded = self._folds.note_published(manifest) if manifest.kind is Kind.DELTA else 0
        self.figures.folded += folded
        return folded

    def _pass_over(self, manifest: Manifest, error: ChainError) -> None:
        """Readers step over it with the next full, which therefore comes soon."""
        self.figures.passed_over += 1
        self._is_full_wanted = True
        phrase = "a commit cannot be published and is passed over; a full follows"
        event(logger, logging.ERROR, phrase, position=manifest.position, kind=manifest.kind, reason=error)

    def _look_around(self, kind: Kind) -> None:
        """Now and then, when there is nothing to send. A store that is away is said when there is."""
        try:
            if kind is Kind.DELTA:
                self.claim.require()
            else:
                self._retention.delete_what_is_over()
        except SupersededError as error:
            self._fail(error)
        except HotdeltaError as error:
            event(logger, logging.DEBUG, "the store could not be looked at", reason=error)

    def _keep_house(self, kind: Kind) -> None:
        if kind is Kind.FULL:
            try:
                self._retention.withdraw_expired(run=self.claim.run)
            except HotdeltaError as error:
                event(logger, logging.WARNING, "old commits stay in the store for now", reason=error)

    def _is_on_its_way(self, node: Node) -> bool:
        return any(position == node.position for _, position in self._outbox.positions())

    def _fail(self, error: HotdeltaError) -> None:
        if self.failure is None:
            self.failure = error
            event(logger, logging.ERROR, "nothing is published any more", reason=error)

    def _unpublished(self) -> UnpublishedError:
        left = self._outbox.unpublished()
        commits = left.deltas + left.fulls
        # What was left here before counts once the store has said what it has.
        earlier = "" if self._outbox.is_decided else ", and what an earlier trainer has left here,"
        since = f", which does not answer: {self.figures.last_error}" if self.figures.away_since else ""
        return UnpublishedError(
            f"{counted(commits, 'commit')} of {left.bytes:,} bytes ({counted(left.deltas, 'delta')}, "
            f"{counted(left.fulls, 'full')}){earlier} are on disk but not in {self._store.address}{since}",
            commits=commits,
            path=self._run_dir,
            hint=f"keep {self._run_dir}: a trainer that starts there publishes them; or raise publish_timeout_secs",
        )


def open_publisher(run_dir: Path, *, keep_fulls: int) -> Publisher | None:
    """For the trainer that holds this directory. None: it is no spool.

    Raises ConfigurationError when it is one that somebody gave by its path, or the store cannot be opened.
    """
    spool = find_spool(run_dir)
    if spool is None:
        refuse_unpublished(run_dir)
        return None
    mark(spool, Disk())
    store = open_store(spool.address)
    return Publisher(
        store,
        run_dir,
        options=spool.options,
        keep_fulls=keep_fulls,
        require_fit=lambda: require_fit_once(spool, store),
    )


def require_fit_once(spool: Spool, store: Store) -> None:
    """Trying a store takes seconds, so a spool remembers that its store was found fit.

    Raises UnfitStoreError, StoreError.
    """
    if not is_found_fit(spool):
        require_fit(store)
        mark(spool, Disk(), is_fit=True)


class _Trouble:
    """How long one thread waits after a failure, and what it says of it."""

    def __init__(self, stop: threading.Event, figures: PublishFigures, kind: Kind) -> None:
        self._stop = stop
        self._figures = figures
        self._kind = kind
        self._failures = FailureLog(logger)
        self._seconds = _FIRST_PAUSE_SECONDS

    def wait(self, error: StoreError) -> None:
        """Also after an error that is not `retryable`: credentials may be put right while training goes on."""
        self._figures.count_failure(error)
        phrase = f"{self._kind}s are not published; training goes on"
        self._failures.failed(phrase, store=self._figures.store, reason=error)
        self.pause()

    def pause(self) -> None:
        self._stop.wait(self._seconds)
        self._seconds = min(2 * self._seconds, _MOST_PAUSE_SECONDS)

    def is_over(self) -> None:
        self._seconds = _FIRST_PAUSE_SECONDS
        self._failures.worked(f"{self._kind}s are published again")


def _superseded(error: HotdeltaError) -> HotdeltaError:
    return error if isinstance(error, SupersededError) else SupersededError(error.message, hint=error.hint)
