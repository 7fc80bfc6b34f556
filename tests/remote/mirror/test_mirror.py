"""The mirror of a chain, on a store in memory: what a follower needs is here, whatever the store does meanwhile."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Manifest, Node, Position, Scanner, directory_of, verify
from hotdelta.chain.format import names
from hotdelta.errors import ConfigurationError, DamagedError, StoreError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.mirror.choice import Following, Holdings, Way, choose
from hotdelta.remote.mirror.mirror import STUCK_SECONDS, Mirror
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.mirror.status import MirrorStatus
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from tests.chain.disks import PoweredDisk
from tests.chain.table_chain import TableChain
from tests.remote.stored_chain import put_commit
from tests.remote.tried_stores import CountingStore
from tests.waiting import wait_until

QUICK = MirrorSettings(poll_seconds=0.01, list_seconds=0.5, retry_seconds=0.05, damage_seconds=0.1)


class RemoteChain:
    """A trainer that publishes each commit."""

    def __init__(self, directory: Path, store: Store, *, rows: int = 40) -> None:
        self.chain = TableChain(directory, rows=rows)
        self.store = store
        self.publish(self.chain.manifests[0])

    def publish(self, manifest: Manifest) -> None:
        put_commit(self.store, self.chain.run_dir, manifest)
        newest = {kind: self._newest(kind) for kind in Kind}
        CommitLog(self.store).tell_head(Head(newest[Kind.FULL], newest[Kind.DELTA]))

    def deltas(self, count: int) -> Node:
        for _ in range(count):
            self.publish(self.chain.delta([1, 2]))
        return self.chain.manifests[-1].node

    def full(self) -> Node:
        full = self.chain.close_with_full([3])
        self.publish(self.chain.manifests[-2])
        self.publish(full)
        return full.node

    def remove(self, *positions: str) -> None:
        """As retention does."""
        for manifest in self.chain.manifests:
            if str(manifest.position) in positions:
                CommitLog(self.store).remove(manifest)

    def _newest(self, kind: Kind) -> Position | None:
        found = [m.position for m in self.chain.manifests if m.kind is kind]
        return max(found, default=None)


class Follower:
    """Serves whatever is here, as far as deltas or fulls lead, at once, until it is told to stay somewhere.

    A commit is here a moment before the thread of the mirror tells of it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.following = Following()
        self.arrivals: list[Path | None] = []
        self._is_still = False
        self._guard_following = threading.Lock()

    def __call__(self) -> Following:
        return self.following

    def hear(self, path: Path | None) -> None:
        self.arrivals.append(path)
        with self._guard_following:
            if not self._is_still:
                newest = Scanner(self._directory).scan().manifests
                self.following = Following(newest[-1].node if newest else None)

    def stay(self, following: Following) -> None:
        """Whatever it hears from now on."""
        with self._guard_following:
            self._is_still, self.following = True, following


class Mirrors:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.follower = Follower(directory)
        self._running: list[Mirror] = []

    def start(self, store: Store, settings: MirrorSettings = QUICK) -> Mirror:
        mirror = Mirror(
            store,
            self.directory,
            settings,
            follower=self.follower,
            on_arrival=self.follower.hear,
            disk=PoweredDisk(),
        )
        self._running.append(mirror)
        mirror.start()
        return mirror

    def stop(self) -> None:
        for mirror in self._running:
            mirror.stop()
        self._running.clear()

    @property
    def here(self) -> list[str]:
        return [f"{m.kind[0]}{m.position}" for m in Scanner(self.directory).scan().manifests]

    def wait_for(self, *commits: str) -> None:
        wait_until(lambda: self.here == list(commits), lambda: f"{self.here} is not {commits}")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def remote(tmp_path: Path, store: MemoryStore) -> RemoteChain:
    return RemoteChain(tmp_path / "trained", store)


@pytest.fixture
def mirrors(tmp_path: Path) -> Iterator[Mirrors]:
    mirrors = Mirrors(tmp_path / "here")
    yield mirrors
    mirrors.stop()


def status_when(mirror: Mirror, condition: Callable[[MirrorStatus], object]) -> MirrorStatus:
    wait_until(lambda: condition(mirror.status()), mirror.status)
    return mirror.status()


def test_a_start_takes_the_newest_full_and_then_each_delta(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    remote.deltas(3)
    remote.full()
    remote.deltas(1)
    mirror = mirrors.start(store)
    mirrors.wait_for("f1.5", "d1.6")
    remote.deltas(2)
    mirrors.wait_for("f1.5", "d1.6", "d1.7", "d1.8")
    manifests = Scanner(mirrors.directory).scan().manifests
    for manifest in manifests:
        verify(mirrors.directory, manifest, roles=names.SERVING_ROLES)
        assert mirror.seen_at(manifest) is not None
        trained = directory_of(remote.chain.run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
        here = directory_of(mirrors.directory, manifest.kind) / trained.name
        assert here.read_bytes() == trained.read_bytes()
    assert not list(mirrors.directory.rglob("*.data-00001-of-00002")), "slots stay where they are"
    wait_until(lambda: len(mirrors.follower.arrivals) == 4, lambda: mirrors.follower.arrivals)
    status = mirror.status()
    assert status.fetched_commits == 4
    assert status.fetched_bytes == sum(manifest.serving_bytes for manifest in manifests)
    assert (status.newest, status.is_reached) == (Position(1, 8), True)
    assert [path.name for path in mirrors.follower.arrivals if path] == [
        names.manifest_name(manifest.prefix) for manifest in manifests
    ]


def test_a_restart_fetches_only_what_came_meanwhile(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    remote.deltas(2)
    mirrors.start(store)
    mirrors.wait_for("f1.1", "d1.2", "d1.3")
    mirrors.stop()
    remote.deltas(2)
    mirrors.follower.following = Following()
    again = mirrors.start(store)
    mirrors.wait_for("f1.1", "d1.2", "d1.3", "d1.4", "d1.5")
    status_when(again, lambda status: status.fetched_commits == 2)


@pytest.mark.parametrize("is_running", [True, False])
def test_what_somebody_tidied_up_is_fetched_again(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors, is_running: bool
) -> None:
    remote.deltas(2)
    mirrors.start(store)
    mirrors.wait_for("f1.1", "d1.2", "d1.3")
    if not is_running:
        mirrors.stop()
        mirrors.follower.following = Following()
    for path in list(mirrors.directory.rglob("*.data-00000-of-00002")):
        # The mirror that finds one of them gone removes what is left of the others.
        path.unlink(missing_ok=True)
    if not is_running:
        mirrors.start(store)

    def is_whole() -> bool:
        manifests = Scanner(mirrors.directory).scan().manifests
        try:
            for manifest in manifests:
                verify(mirrors.directory, manifest, roles=names.SERVING_ROLES)
        except DamagedError:
            return False
        return bool(manifests)

    wait_until(is_whole, lambda: mirrors.here)
    remote.deltas(1)
    wait_until(lambda: "d1.4" in mirrors.here, lambda: mirrors.here)


def test_an_empty_store_is_waited_for(store: MemoryStore, mirrors: Mirrors, tmp_path: Path) -> None:
    mirror = mirrors.start(store)
    status_when(mirror, lambda status: status.is_reached)
    assert mirrors.here == []
    RemoteChain(tmp_path / "trained", store)
    mirrors.wait_for("f1.1")


def test_a_delta_that_retention_took_is_stepped_over_by_the_full(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    mirrors.start(store)
    mirrors.wait_for("f1.1")
    mirrors.stop()
    remote.deltas(2)
    remote.full()
    remote.deltas(1)
    remote.remove("1.1", "1.2", "1.3")
    mirrors.start(store)
    mirrors.wait_for("f1.1", "f1.4", "d1.5")


def test_a_store_that_went_away_is_told_once_and_is_followed_again(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hotdelta.remote.mirror")
    away = AwayStore(store)
    mirror = mirrors.start(away)
    mirrors.wait_for("f1.1")
    away.is_away = True
    remote.deltas(2)
    status = status_when(mirror, lambda status: status.failures > 3)
    assert not status.is_reached
    assert status.answered_at is not None
    assert "away" in status.problem
    away.is_away = False
    mirrors.wait_for("f1.1", "d1.2", "d1.3")
    said = [record.message for record in caplog.records]
    assert sum("the store does not answer" in message for message in said) == 1
    assert sum("the store answers again" in message for message in said) == 1
    assert mirror.status().problem == ""


class AwayStore(CountingStore):
    """Does not answer while it is away."""

    is_away = False

    def _answer(self, count, do):  # type: ignore[no-untyped-def]
        if self.is_away:
            raise StoreError("the store is away", retryable=True)
        return do()


class FaultyStore(CountingStore):
    """Of the requests for what a mirror reads some fail, answer with less, or with a listing of before."""

    def __init__(self, store: Store, seed: int) -> None:
        super().__init__(store)
        self._random = random.Random(seed)
        self.faults = 0
        self._old: dict[str, list[object]] = {}

    def _answer(self, count, do):  # type: ignore[no-untyped-def]
        verb, name = self.requests[count - 1]
        chance = self._random.random()
        if chance < 0.1:
            self.faults += 1
            raise StoreError("503", retryable=True)
        found = do()
        if verb == "get_range" and chance < 0.2 and len(found):
            self.faults += 1
            return found[: len(found) // 2] if chance < 0.15 else memoryview(bytes(len(found)))
        if verb == "list_after":
            listed = list(found)
            old = self._old.setdefault(name, listed)
            if chance < 0.4:
                self.faults += 1
                return iter(old)
            self._old[name] = listed
            return iter(listed)
        return found


@pytest.mark.parametrize("seed", range(3))
def test_under_faults_nothing_wrong_arrives_and_everything_does(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors, seed: int
) -> None:
    faulty = FaultyStore(store, seed)
    mirrors.start(faulty, MirrorSettings(0.01, 0.1, retry_seconds=0.02, damage_seconds=5.0))
    rounds = 0
    # How many requests a round takes is a matter of time, and with them its faults.
    while rounds < 6 or faulty.faults <= 30:
        rounds += 1
        assert rounds <= 100, faulty.faults
        remote.deltas(4)
        newest = remote.full()
        wait_until(
            lambda node=newest: mirrors.follower.following.node == node,  # type: ignore[misc]
            lambda: mirrors.here,
        )
        for manifest in Scanner(mirrors.directory).scan().manifests:
            verify(mirrors.directory, manifest, roles=names.SERVING_ROLES)


def test_a_damaged_delta_is_told_and_the_next_full_steps_over_it(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    mirror = mirrors.start(store)
    mirrors.wait_for("f1.1")
    delta = remote.chain.delta([1])
    for file in delta.files:
        store.put(layout.data_name(delta, file.name), bytes(file.bytes))
    CommitLog(store).add(delta, delta.to_json())
    remote.deltas(1)
    status = status_when(mirror, lambda status: status.damaged)
    assert "delta 1.2" in status.damaged[0]
    assert "f1.1" in mirrors.here
    remote.full()
    mirrors.wait_for("f1.1", "f1.4")


def test_a_new_beginning_under_the_address_takes_the_place_of_what_is_here(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors, tmp_path: Path
) -> None:
    remote.deltas(5)
    mirrors.start(store)
    mirrors.wait_for("f1.1", "d1.2", "d1.3", "d1.4", "d1.5", "d1.6")
    for entry in list(store.list_after("")):
        store.delete(entry.name)
    anew = RemoteChain(tmp_path / "anew", store)
    node = anew.deltas(2)
    mirrors.wait_for("f1.1", "d1.2", "d1.3")
    wait_until(lambda: mirrors.follower.following.node == node, "the follower is in the new history")


def test_a_listing_of_before_never_removes_anything(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    stale = StaleStore(store)
    mirror = mirrors.start(stale)
    remote.deltas(3)
    mirrors.wait_for("f1.1", "d1.2", "d1.3", "d1.4")
    stale.is_stale, count = True, stale.listings
    wait_until(lambda: stale.listings > count + 4, "several listings of before")
    assert mirrors.here == ["f1.1", "d1.2", "d1.3", "d1.4"]
    assert mirror.status().damaged == ()


class StaleStore(CountingStore):
    """While it is stale it lists what was there when it was first asked."""

    is_stale = False

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._first: dict[str, list[object]] = {}
        self.listings = 0

    def _answer(self, count, do):  # type: ignore[no-untyped-def]
        verb, name = self.requests[count - 1]
        if verb != "list_after":
            return do()
        self.listings += 1
        listed = list(do())
        first = self._first.setdefault(name, listed)
        return iter(first if self.is_stale else listed)


def test_no_listing_is_needed_to_follow_the_hint(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    remote.deltas(1)
    counting = CountingStore(store)
    mirrors.start(counting, MirrorSettings(0.01, list_seconds=3600.0))
    mirrors.wait_for("f1.1", "d1.2")
    listed = len(counting.names("list_after"))
    for _ in range(5):
        remote.deltas(2)
        node = remote.chain.manifests[-1].node
        wait_until(lambda node=node: mirrors.follower.following.node == node, lambda: mirrors.here)  # type: ignore[misc]
    assert len(counting.names("list_after")) == listed


def test_without_a_hint_what_is_new_is_listed(store: MemoryStore, tmp_path: Path, mirrors: Mirrors) -> None:
    chain = TableChain(tmp_path / "trained")
    put_commit(store, chain.run_dir, chain.manifests[0])
    mirrors.start(store)
    mirrors.wait_for("f1.1")
    put_commit(store, chain.run_dir, chain.delta([1]))
    mirrors.wait_for("f1.1", "d1.2")


def test_room_is_made_when_a_newer_full_allows_it(mirrors: Mirrors, tmp_path: Path) -> None:
    wide = RemoteChain(tmp_path / "wide", MemoryStore(), rows=40_000)
    mirrors.start(wide.store, MirrorSettings(0.01, 0.2, max_bytes=2**20))
    for seq in range(2, 6):
        wide.publish(wide.chain.delta(range(10_000)))
        wait_until(lambda last=f"d1.{seq}": last in mirrors.here, lambda: mirrors.here)  # type: ignore[misc]
    wide.full()
    wide.deltas(1)
    # The closing delta is not needed by a follower to whom the full came first.
    wait_until(
        lambda: [each for each in mirrors.here if each != "d1.6"] == ["d1.4", "d1.5", "f1.6", "d1.7"],
        lambda: mirrors.here,
    )


def test_two_mirrors_do_not_share_a_directory(store: MemoryStore, mirrors: Mirrors) -> None:
    mirrors.start(store)
    with pytest.raises(ConfigurationError, match="another server mirrors"):
        Mirror(store, mirrors.directory, QUICK)
    mirrors.stop()
    Mirror(store, mirrors.directory, QUICK).stop()


def test_what_is_not_signed_is_not_brought(store: MemoryStore, remote: RemoteChain, mirrors: Mirrors) -> None:
    remote.deltas(1)
    mirror = Mirror(
        store,
        mirrors.directory,
        QUICK,
        disk=PoweredDisk(),
        distrust=lambda manifest: "not signed" if manifest.kind is Kind.DELTA else "",
    )
    mirror.start()
    try:
        mirrors.wait_for("f1.1")
        status_when(mirror, lambda status: status.answered_at)
        assert mirrors.here == ["f1.1"]
    finally:
        mirror.stop()


def test_a_follower_that_is_stuck_gets_a_full(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    mirrors.start(store)
    mirrors.wait_for("f1.1")
    remote.deltas(1)
    mirrors.wait_for("f1.1", "d1.2")
    mirrors.follower.stay(Following(remote.chain.manifests[0].node, wants_full=True))
    remote.full()
    mirrors.wait_for("f1.1", "d1.2", "f1.3", "d1.3")


def test_deltas_that_go_on_coming_do_not_keep_a_full_from_a_follower_that_is_stuck(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors
) -> None:
    mirrors.start(store)
    mirrors.wait_for("f1.1")
    mirrors.follower.stay(Following(remote.chain.manifests[0].node, wants_full=True))
    full = remote.chain.close_with_full([3])
    remote.publish(remote.chain.manifests[-2])
    mirrors.wait_for("f1.1", "d1.2")
    remote.publish(full)

    def is_here_when_another_delta_has_come() -> bool:
        remote.deltas(1)
        return "f1.2" in mirrors.here

    wait_until(is_here_when_another_delta_has_come, lambda: mirrors.here, poll_seconds=STUCK_SECONDS / 5)


def test_a_follower_that_takes_no_deltas_costs_no_more_while_there_is_no_newer_full(
    store: MemoryStore, remote: RemoteChain, mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def asking(following: Following, holdings: Holdings, *, max_bytes: int) -> tuple[Way, ...]:
        asked.append(following.wants_full)
        return choose(following, holdings, max_bytes=max_bytes)

    monkeypatch.setattr("hotdelta.remote.mirror.mirror.choose", asking)
    mirrors.start(store)
    mirrors.wait_for("f1.1")
    mirrors.follower.stay(Following(remote.chain.manifests[0].node, wants_full=True))
    until = time.monotonic() + 1.5 * STUCK_SECONDS
    while time.monotonic() < until:
        remote.deltas(1)
        time.sleep(STUCK_SECONDS / 10)
    wait_until(lambda: f"d{remote.chain.manifests[-1].position}" in mirrors.here, lambda: mirrors.here)
    assert not any(asked)
