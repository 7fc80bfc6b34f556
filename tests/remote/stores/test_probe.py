"""A store that does not keep what chains rest on is found out; one that does is not suspected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdelta.errors import StoreError, UnfitStoreError
from hotdelta.remote.stores.contract import Entry, Store
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.stores.probe import Fitness, probe, require_fit
from tests.remote.servers import S3Server
from tests.waiting import wait_until


def fitness(store: Store) -> dict[str, Fitness]:
    return {finding.promise: finding.fitness for finding in probe(store)}


@pytest.mark.parametrize("where", ["seaweedfs", "file", "memory"])
def test_a_store_that_keeps_everything_is_fit(seaweedfs: S3Server, tmp_path: Path, where: str) -> None:
    address = {
        "seaweedfs": seaweedfs.new_address(),
        "file": f"file://{tmp_path}/store",
        "memory": "memory://test-probe",
    }[where]
    store = open_store(address)
    assert set(fitness(store).values()) == {Fitness.KEPT}
    require_fit(store)
    assert list(store.list_after("")) == [], "the probe left something behind"


def test_a_real_server_that_ignores_conditions_is_refused(rclone: S3Server) -> None:
    store = open_store(rclone.new_address())
    found = fitness(store)
    assert found["new names"] is found["many writers"] is Fitness.BROKEN
    with pytest.raises(UnfitStoreError, match=r"conditions are ignored.*conditional puts") as refused:
        require_fit(store)
    assert not refused.value.retryable


class Conditionless(MemoryStore):
    def put_new(self, name: str, content: bytes) -> None:
        self.put(name, content)


class Racing(MemoryStore):
    """Looks first and puts then: of those who come at once two have looked before anybody puts."""

    def __init__(self) -> None:
        super().__init__()
        self._looks: list[str] = []

    def put_new(self, name: str, content: bytes) -> None:
        is_there = name in self._objects
        self._looks.append(name)
        if is_there:
            super().put_new(name, content)
        if name.endswith("at-once"):
            wait_until(lambda: self._looks.count(name) > 1, "another one who looks")
        self.put(name, content)


class Caching(MemoryStore):
    """Reads what was there first."""

    def put(self, name: str, content: bytes) -> None:
        self.__dict__.setdefault("first", {}).setdefault(name, content)
        super().put(name, content)

    def get(self, name: str, *, max_bytes: int) -> bytes:
        content = super().get(name, max_bytes=max_bytes)
        return bytes(self.__dict__.get("first", {}).get(name, content))


class Undying(MemoryStore):
    def delete(self, name: str) -> None:
        if name.endswith("read"):
            return
        super().delete(name)


class StaleListing(MemoryStore):
    """Does not list what was put last."""

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        newest = next(reversed(self._objects), "")
        return (entry for entry in super().list_after(prefix, after) if entry.name != newest)


class UnorderedListing(MemoryStore):
    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        return reversed(list(super().list_after(prefix, after)))


class ListingFromTheBegin(MemoryStore):
    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        return super().list_after(prefix)


class WholeRanges(MemoryStore):
    def get_range(self, name: str, start: int, length: int) -> memoryview:
        return super().get_range(name, 0, start + length)


class Truncating(MemoryStore):
    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes()[: 5 * 1024 * 1024])


@pytest.mark.parametrize(
    "kind, promise, is_needed",
    [
        (Conditionless, "new names", True),
        (Racing, "many writers", True),
        (Caching, "read after write", True),
        (Undying, "read after write", True),
        (StaleListing, "list after", True),
        (UnorderedListing, "list after", True),
        (ListingFromTheBegin, "list after", True),
        (WholeRanges, "ranges", False),
        (Truncating, "large files", False),
    ],
)
def test_a_promise_that_is_not_kept_is_named(kind: type[MemoryStore], promise: str, is_needed: bool) -> None:
    assert fitness(kind())[promise] is Fitness.BROKEN
    if is_needed:
        with pytest.raises(UnfitStoreError, match=promise):
            require_fit(kind())
    else:
        require_fit(kind())


class OtherClock(MemoryStore):
    def __init__(self, seconds_ahead: float) -> None:
        super().__init__()
        self._seconds_ahead = seconds_ahead

    def when_put(self, name: str) -> float:
        return float(int(time.time() + self._seconds_ahead))


@pytest.mark.parametrize("seconds, said", [(-60.0, "behind"), (60.0, "ahead")])
def test_a_clock_that_differs_is_told_and_does_no_harm(seconds: float, said: str) -> None:
    (clock,) = [finding for finding in probe(OtherClock(seconds)) if finding.promise == "its clock"]
    assert clock.fitness is Fitness.DOUBTFUL
    assert said in clock.found
    assert set(fitness(OtherClock(0.0)).values()) == {Fitness.KEPT}


def test_a_store_that_is_away_is_not_called_unfit() -> None:
    store = open_store("s3://bucket/run?endpoint=http://127.0.0.1:9")
    for asked in (lambda: require_fit(store), lambda: list(probe(store))):
        with pytest.raises(StoreError) as failed:
            asked()
        assert failed.value.retryable
