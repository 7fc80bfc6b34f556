"""A run number is one trainer's, and whoever has a higher one takes the chain over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hotdelta.chain.format.position import MAX_NUMBER
from hotdelta.errors import ChainError, StoreError, SupersededError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.claims import CHECK_SECONDS, Claim, highest_run
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.stores.opening import open_store
from tests.chain.manifests import delta
from tests.remote.tried_stores import CountingStore, StumblingStore


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def published(store: Store, text: str) -> None:
    manifest = delta(text, "1.1")
    CommitLog(store).add(manifest, manifest.to_json())


def test_numbers_rise_above_claims_the_log_and_what_the_trainer_has() -> None:
    store = MemoryStore()
    assert highest_run(store) is None
    assert Claim(store).take(1) == 1
    assert Claim(store).take(1) == 2
    assert Claim(store).take(7) == 7
    published(store, "12.3")
    assert highest_run(store) == 12
    assert highest_run(store, above=12) is None
    assert Claim(store).take(1) == 13


def test_of_many_trainers_each_gets_its_own(s3_address: str) -> None:
    for store in (MemoryStore(), open_store(s3_address)):
        barrier = threading.Barrier(8)

        def take(_: int, store: Store = store, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return Claim(store).take(1)

        with ThreadPoolExecutor(8) as pool:
            runs = list(pool.map(take, range(8)))
        assert len(set(runs)) == 8, runs


def test_a_trainer_finds_out_that_another_one_began() -> None:
    store, clock = CountingStore(MemoryStore()), Clock()
    first = Claim(store, clock=clock)
    first.take(1)
    first.require()
    asked = len(store.requests)
    first.require()
    assert len(store.requests) == asked, "the store is not asked at every delta"
    assert Claim(store.inner).take(1) == 2
    first.require()
    clock.now += CHECK_SECONDS
    with pytest.raises(SupersededError, match=r"run 2 of memory://, and this one has 1.*pid"):
        first.require()


def test_a_run_that_begins_without_the_store_is_claimed_before_anything_is_published() -> None:
    store = MemoryStore()
    claim = Claim(store)
    claim.take_later(5)
    before = claim.is_held
    claim.require()
    assert (before, claim.is_held) == (False, True)
    assert highest_run(store) == 5


@pytest.mark.parametrize("taken", [5, 6])
def test_a_run_that_another_trainer_took_meanwhile_is_never_used(taken: int) -> None:
    store, claim = MemoryStore(), Claim(MemoryStore())
    claim = Claim(store)
    claim.take_later(5)
    Claim(store).take(taken)
    with pytest.raises(SupersededError, match=f"the run {taken} of"):
        claim.require()
    assert not (taken == 5 and claim.is_held)


@pytest.mark.parametrize("is_done", [False, True], ids=["not carried out", "answer lost"])
def test_a_claim_whose_answer_was_lost_is_ours(is_done: bool) -> None:
    inner = MemoryStore()
    puts_at = 1 + len(CountingStore(inner).requests)
    for fails_at in range(puts_at, 8):
        store = StumblingStore(MemoryStore(), fails_at=fails_at, is_done=is_done)
        claim = Claim(store)
        claim.take_later(3)
        try:
            claim.require()
        except StoreError:
            claim.require()
        assert claim.is_held
        assert highest_run(store.inner) == 3


def test_numbers_that_cannot_be_true_are_said() -> None:
    store = MemoryStore()
    store.put(f"{layout.CLAIMS}9999999999", b"")
    store.put(f"{layout.CLAIMS}rubbish", b"")
    assert Claim(store).take(1) == 1
    store.put(layout.claim_name(MAX_NUMBER), b"")
    with pytest.raises(ChainError, match="no trainer is started that often"):
        Claim(store).take(1)


@pytest.mark.parametrize("is_done", [False, True], ids=["not carried out", "answer lost"])
def test_a_trainer_whose_claim_got_no_answer_is_not_passed_by_itself(is_done: bool) -> None:
    inner = CountingStore(MemoryStore())
    Claim(inner).take(4)
    put_at = len(inner.requests)
    claim = Claim(StumblingStore(inner.inner, fails_at=put_at, is_done=is_done))
    with pytest.raises(StoreError):
        claim.take(3)
    assert claim.take_later(3) == 5
    claim.require()
    assert (claim.is_held, highest_run(inner)) == (True, 5)
