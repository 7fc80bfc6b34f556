"""Between a client and a real store everything goes wrong that can: what the verbs say is true all the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hotdelta.errors import NameTakenError, ObjectMissingError, StoreError
from hotdelta.remote.stores.contract import Entry, Store, put_once
from hotdelta.remote.stores.opening import open_store
from tests.chaos.seeds import seeded
from tests.remote.fault_proxy import (
    OF_THE_NETWORK,
    Fault,
    FaultProxy,
    every_request,
    nth_request,
    seeded_faults,
)
from tests.remote.servers import S3Server
from tests.waiting import LIMIT_SECONDS, wait_until

T = TypeVar("T")

_TRIES = 100
# A put that arrives late takes the place of a later one of the same name: nobody may rest on the order of those.
NEVER_LATE = OF_THE_NETWORK - {Fault.LATE}


class Place:
    """One place in the server, seen through the proxy and as it is."""

    def __init__(self, server: S3Server, proxy: FaultProxy) -> None:
        address = server.new_address()
        self.proxy = proxy
        self.store = open_store(address.replace(server.endpoint, proxy.endpoint))
        self.truth = open_store(address)


@pytest.fixture
def place(seaweedfs: S3Server) -> Iterator[Place]:
    with FaultProxy(seaweedfs.endpoint) as proxy:
        yield Place(seaweedfs, proxy)


def until_done(verb: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """As those do who call: again and again while it helps."""
    for _ in range(_TRIES):
        try:
            return verb(*arguments, **named)
        except StoreError as error:
            if not error.retryable:
                raise
    raise AssertionError("it is never done")


def listed(store: Store, after: str) -> list[Entry]:
    return list(store.list_after("log/", after))


def object_at(store: Store, name: str) -> bytes | None:
    try:
        return store.get(name, max_bytes=1000)
    except ObjectMissingError:
        return None


@pytest.mark.parametrize("fault", sorted(OF_THE_NETWORK), ids=lambda fault: fault.name)
@pytest.mark.parametrize("number", [1, 2])
def test_put_once_tells_the_truth_under_each_fault(place: Place, fault: Fault, number: int) -> None:
    place.proxy.plan = nth_request(number, fault)
    assert until_done(put_once, place.store, "log/1", b"mine")
    assert object_at(place.truth, "log/1") == b"mine"
    place.proxy.plan = nth_request(number, fault)
    assert not until_done(put_once, place.store, "log/1", b"theirs")
    assert until_done(put_once, place.store, "log/1", b"mine")
    assert object_at(place.truth, "log/1") == b"mine"


def test_of_many_writers_one_wins_whatever_happens_to_their_requests(place: Place) -> None:
    let_writers_meet(place, names=16)
    assert sum(place.proxy.faults.values()) >= 30


@pytest.mark.soak
def test_of_many_writers_one_wins_a_thousand_times(place: Place) -> None:
    let_writers_meet(place, names=1000)
    assert sum(place.proxy.faults.values()) >= 2000


def let_writers_meet(place: Place, *, names: int) -> None:
    place.proxy.plan = seeded_faults(seeded("writers"), share=0.4)
    wanted = [f"claims/{number:04}" for number in range(names)]

    def claim_all(writer: int) -> list[str]:
        content = b"writer %d" % writer
        return [name for name in wanted if until_done(put_once, place.store, name, content)]

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(claim_all, range(4)))
    assert sorted(name for claimed in won for name in claimed) == wanted
    for writer, claimed in enumerate(won):
        assert {object_at(place.truth, name) for name in claimed} <= {b"writer %d" % writer}


def test_what_is_read_is_what_was_put_or_nothing(place: Place) -> None:
    content = random.Random(1).randbytes(200_000)
    place.truth.put("data/a", content)
    place.proxy.plan = seeded_faults(seeded("reading"), share=0.4)
    for start in range(0, 200_000, 10_000):
        piece = until_done(place.store.get_range, "data/a", start, 10_000)
        assert bytes(piece) == content[start : start + 10_000]
        assert until_done(place.store.get, "data/a", max_bytes=200_000) == content
        with pytest.raises(ObjectMissingError):
            until_done(place.store.get, "data/none", max_bytes=1)
    assert sum(place.proxy.faults.values()) >= 20


def test_what_was_put_is_there_and_whole(place: Place, tmp_path: Path) -> None:
    chance = seeded("putting")
    place.proxy.plan = seeded_faults(chance, share=0.3, faults=NEVER_LATE)
    for number in range(25):
        content = random.Random(number).randbytes(3_000)
        until_done(place.store.put, "head", content)
        assert place.truth.get("head", max_bytes=3_000) == content
    # In three parts, each a request of its own.
    content = random.Random(2).randbytes(12_000_000)
    (tmp_path / "file").write_bytes(content)
    for number in range(3):
        until_done(place.store.put_file, f"data/{number}", tmp_path / "file")
        assert bytes(place.truth.get_range(f"data/{number}", 0, len(content))) == content


def test_what_is_listed_is_all_there_is(place: Place) -> None:
    names = [f"log/{number:04}" for number in range(40)]
    for name in names:
        place.truth.put(name, b"x")
    place.proxy.plan = seeded_faults(seeded("listing"), share=0.4)
    for after in ("", *names[:-1]):
        found = until_done(listed, place.store, after)
        assert [entry.name for entry in found] == [name for name in names if name > after]


def test_what_is_deleted_is_gone(place: Place) -> None:
    names = [f"data/{number}" for number in range(20)]
    for name in names:
        place.truth.put(name, b"x")
    place.proxy.plan = seeded_faults(seeded("deleting"), share=0.4)
    for name in names:
        until_done(place.store.delete, name)
        assert object_at(place.truth, name) is None


def test_a_store_that_is_away_is_said_to_be_and_comes_back(place: Place) -> None:
    place.proxy.plan = every_request(Fault.DROP)
    with pytest.raises(StoreError) as failed:
        put_once(place.store, "log/1", b"mine")
    assert failed.value.retryable
    place.proxy.plan = every_request(Fault.BUSY)
    with pytest.raises(StoreError, match="503") as failed:
        place.store.get("log/1", max_bytes=4)
    assert failed.value.retryable
    place.proxy.plan = None
    assert put_once(place.store, "log/1", b"mine")


def test_a_conditional_put_that_always_meets_another_ends_and_says_so(place: Place) -> None:
    place.proxy.plan = every_request(Fault.CONFLICT)
    with pytest.raises(NameTakenError):
        place.store.put_new("log/1", b"mine")
    with pytest.raises(StoreError, match="hotdelta doctor") as failed:
        put_once(place.store, "log/1", b"mine")
    assert failed.value.retryable
    assert not isinstance(failed.value, NameTakenError)


def test_the_proxy_does_what_it_says(place: Place) -> None:
    """Otherwise the tests above prove less than they seem to."""
    for number in range(3):
        place.truth.put(f"log/{number}", b"x")
    place.proxy.plan = every_request(Fault.STALE_LISTING)
    assert [entry.name for entry in place.store.list_after("log/")] == ["log/0", "log/1"]
    place.proxy.plan = nth_request(1, Fault.TAKEN_AFTERWARDS)
    with pytest.raises(NameTakenError):
        place.store.put_new("log/3", b"mine")
    assert object_at(place.truth, "log/3") == b"mine"
    place.proxy.plan = every_request(Fault.CUT_ANSWER)
    with pytest.raises(StoreError):
        place.store.get("log/3", max_bytes=10)
    place.proxy.plan = nth_request(1, Fault.OVERTAKEN)
    place.proxy.held_seconds = LIMIT_SECONDS
    begun = len(place.proxy.seen)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(place.store.put, "head", b"first")
        wait_until(lambda: len(place.proxy.seen) > begun, "the first request arrives")
        for content in (b"second", b"third"):
            place.store.put("head", content)
        first.result()
    assert object_at(place.truth, "head") == b"first"
