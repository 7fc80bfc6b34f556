"""What a trainer commits gets into the store in order, whatever the store does meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from hotdelta.chain import Kind, Manifest, Position
from hotdelta.chain.format import names
from hotdelta.errors import HotdeltaError, StoreError, SupersededError, UnpublishedError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.publish.claims import Claim
from hotdelta.remote.publish.publisher import Publisher
from hotdelta.remote.publish.spool import SpoolOptions
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from tests.chain.manifests import delta
from tests.chain.table_chain import TableChain
from tests.remote.test_departures import require_whole
from tests.remote.tried_stores import AwayStore, CountingStore
from tests.waiting import wait_until

Start = Callable[..., Publisher]
T = TypeVar("T")


@pytest.fixture
def chain(tmp_path: Path) -> TableChain:
    return TableChain(tmp_path / "run")


@pytest.fixture
def start(chain: TableChain) -> Iterator[Start]:
    """A publisher of what is committed now, whose run is claimed."""
    started: list[Publisher] = []

    def start(store: Store, *, seconds: float = 60.0, max_bytes: int = 10**9, keep: int = 5) -> Publisher:
        options = SpoolOptions(publish_timeout_secs=seconds, max_bytes=max_bytes)
        publisher = Publisher(store, chain.run_dir, options=options, keep_fulls=keep)
        publisher.claim_run(1, may_begin_alone=True)
        publisher.begin(chain.manifests, chain.manifests[-1].node)
        started.append(publisher)
        return publisher

    yield start
    for publisher in started:
        try:
            publisher.close()
        except HotdeltaError:
            continue


def committed(publisher: Publisher, *manifests: Manifest) -> None:
    for manifest in manifests:
        publisher.committed(manifest)


def in_log(store: Store, kind: Kind) -> list[str]:
    return [str(position) for position in CommitLog(store).positions_after(kind, None)]


def test_what_was_there_and_what_is_committed_are_published_in_order(
    chain: TableChain, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = CountingStore(MemoryStore())
    before = chain.delta([1])
    publisher = start(store)
    # Of fulls that wait the newest takes the place of the others.
    wait_until(lambda: in_log(store.inner, Kind.FULL) == ["1.1"], "the first full is not published")
    after = [chain.delta([2]), chain.delta([3]), chain.close_with_full([4])]
    committed(publisher, *after[:2], chain.manifests[-2], after[2])
    publisher.wait()
    for manifest in (chain.manifests[0], before, *after):
        require_whole(store.inner, chain, manifest)
    deltas = [name for name in store.names("put_new") if name.startswith(layout.log_prefix(Kind.DELTA))]
    assert deltas == sorted(deltas)
    assert len(deltas) == 4
    assert CommitLog(store.inner).head() == Head(full=after[2].position, delta=after[2].position)
    figures = publisher.figures
    assert figures.commits == {"delta": 4, "full": 2}
    assert figures.newest == {"delta": Position(1, 5), "full": Position(1, 5)}
    assert figures.unpublished.bytes == 0
    said = [record.message for record in caplog.records]
    assert sum(message.startswith("delta published position=1.") for message in said) == 4
    assert sum(message.startswith("full published position=1.") for message in said) == 2


def test_after_a_restart_it_goes_on_where_the_log_is(chain: TableChain, start: Start) -> None:
    store = CountingStore(MemoryStore())
    publisher = start(store)
    publisher.wait()
    publisher.close()
    old, new = chain.delta([1]), chain.delta([2])
    asked = len(store.requests)
    publisher = start(store)
    publisher.wait()
    require_whole(store.inner, chain, old)
    require_whole(store.inner, chain, new)
    sent = [name for verb, name in store.requests[asked:] if verb in ("put", "put_new", "put_file")]
    assert not any(name.startswith(layout.data_prefix(chain.manifests[0].node)) for name in sent)
    assert len([name for name in sent if name.startswith("log/")]) == 2


def test_what_was_left_here_is_not_counted_short_before_the_store_has_said_what_it_has(
    chain: TableChain,
) -> None:
    store = AwayStore(MemoryStore())
    store.is_away = True
    publisher = Publisher(store, chain.run_dir, options=SpoolOptions(publish_timeout_secs=0.0), keep_fulls=5)
    publisher.claim_run(1, may_begin_alone=True)
    publisher.begin(chain.manifests, chain.manifests[-1].node)
    committed(publisher, chain.delta([1]))
    with pytest.raises(
        UnpublishedError, match=r"1 delta, .*, and what an earlier trainer has left here, are on"
    ):
        publisher.close()


def test_a_store_that_is_away_stops_nobody_and_gets_all_when_it_is_back(
    chain: TableChain, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    store = AwayStore(MemoryStore())
    publisher = start(store, seconds=0.0)
    wait_until(lambda: publisher.published_of(chain.manifests) == chain.manifests, "the first full waits")
    store.is_away = True
    committed(publisher, *(chain.delta([n]) for n in range(5)))
    wait_until(lambda: publisher.figures.away_since, "nothing has failed")
    since = publisher.figures.away_since
    assert publisher.figures.unpublished.deltas == 5
    with pytest.raises(
        UnpublishedError, match=r"5 commits.*5 deltas, 0 fulls.*the network is away"
    ) as raised:
        publisher.wait()
    assert raised.value.commits == 5
    assert raised.value.retryable
    publisher.require_current()
    store.is_away = False
    wait_until(lambda: publisher.figures.unpublished.deltas == 0, "it does not catch up")
    assert in_log(store.inner, Kind.DELTA) == [f"1.{seq}" for seq in range(2, 7)]
    assert (since is not None, publisher.figures.away_since) == (True, None)
    said = [record.message for record in caplog.records if "training goes on" in record.message]
    assert said, "and it is said"


def test_a_full_that_cannot_be_put_holds_no_delta_back(chain: TableChain, start: Start) -> None:
    store = AwayStore(MemoryStore(), only="data/0000000001-0000000001")
    store.is_away = True
    publisher = start(store)
    committed(publisher, chain.delta([1]), chain.delta([2]))
    wait_until(lambda: in_log(store.inner, Kind.DELTA) == ["1.2", "1.3"], "the deltas wait")
    assert in_log(store.inner, Kind.FULL) == []
    store.is_away = False
    publisher.wait()
    assert in_log(store.inner, Kind.FULL) == ["1.1"]


def test_a_spool_is_full_of_what_is_not_published_and_has_room_again(chain: TableChain, start: Start) -> None:
    store = AwayStore(MemoryStore())
    publisher = start(store, max_bytes=1)
    publisher.wait()
    store.is_away = True
    waiting = chain.delta([1])
    committed(publisher, waiting)
    was_full = publisher.is_spool_full
    assert publisher.published_of([*chain.manifests]) == [chain.manifests[0]]
    publisher.wait_for_room(lambda: True)
    store.is_away = False
    publisher.wait_for_room(lambda: False)
    assert (was_full, publisher.is_spool_full) == (True, False)
    assert publisher.published_of([waiting]) == [waiting]


def test_a_trainer_that_another_one_passed_publishes_nothing_more(chain: TableChain, start: Start) -> None:
    store = AwayStore(MemoryStore())
    store.is_away = True
    publisher = start(store)
    assert not publisher.claim.is_held
    Claim(store.inner).take(2)
    store.is_away = False
    wait_until(lambda: publisher.failure is not None, "it does not notice")
    with pytest.raises(SupersededError, match="run 2"):
        publisher.require_current()
    committed(publisher, chain.delta([1]))
    with pytest.raises(SupersededError):
        publisher.wait()
    publisher.close()
    assert list(store.inner.list_after("log/")) == []
    assert list(store.inner.list_after("data/")) == []


def test_a_position_that_somebody_else_published_ends_it(chain: TableChain, start: Start) -> None:
    store = MemoryStore()
    publisher = start(store)
    publisher.wait()
    theirs = delta("1.2", "1.1")
    CommitLog(store).add(theirs, theirs.to_json())
    committed(publisher, chain.delta([1]))
    with pytest.raises(SupersededError, match=r"another delta at 1\.2"):
        publisher.wait()
    assert CommitLog(store).read(Kind.DELTA, theirs.position)[0] == theirs


def test_a_damaged_commit_is_passed_over_and_a_full_is_wanted(
    chain: TableChain, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    publisher = start(store)
    damaged, sound = chain.delta([1]), chain.delta([2])
    chain.path(damaged, names.ROLE_SERVING).unlink()
    committed(publisher, damaged, sound)
    publisher.wait()
    assert in_log(store, Kind.DELTA) == ["1.3"]
    assert publisher.figures.passed_over == 1
    assert [publisher.take_wish_for_full(), publisher.take_wish_for_full()] == [True, False]
    assert any("passed over" in record.message for record in caplog.records)


def test_a_spool_of_another_chain_is_not_mixed_with_it(
    chain: TableChain, start: Start, tmp_path: Path
) -> None:
    store, other = MemoryStore(), TableChain(tmp_path / "other")
    CommitLog(store).add(other.manifests[0], other.manifests[0].to_json())
    publisher = start(store)
    with pytest.raises(HotdeltaError, match="two histories"):
        publisher.wait()


def test_nobody_begins_alone_who_has_nothing_to_go_on_from(chain: TableChain) -> None:
    store = AwayStore(MemoryStore())
    store.is_away = True
    publisher = Publisher(store, chain.run_dir, options=SpoolOptions(), keep_fulls=5)
    with pytest.raises(StoreError, match="away"):
        publisher.claim_run(1, may_begin_alone=False)
    assert publisher.claim_run(4, may_begin_alone=True) == 4
    publisher.close()


def test_real_servers_get_it_too(chain: TableChain, start: Start, s3_address: str) -> None:
    from hotdelta.remote.stores.opening import open_store

    store = open_store(s3_address)
    publisher = start(store)
    committed(publisher, *(chain.delta([n]) for n in range(3)))
    publisher.wait()
    for manifest in chain.manifests:
        require_whole(store, chain, manifest)


def test_what_is_under_way_when_training_ends_is_no_failure(
    chain: TableChain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hotdelta.remote.publish.publisher._JOIN_SECONDS", 0.01)
    slow = threading.Event()

    class SlowToList(CountingStore):
        def _answer(self, count: int, do: Callable[[], T]) -> T:
            if self.requests[count - 1][1].startswith(layout.DATA):
                slow.wait()
            return do()

    options = SpoolOptions(publish_timeout_secs=0.0)
    slow_store = SlowToList(MemoryStore())
    publisher = Publisher(slow_store, chain.run_dir, options=options, keep_fulls=5)
    publisher.claim_run(1, may_begin_alone=True)
    publisher.begin(chain.manifests, chain.manifests[-1].node)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("hotdelta-publish-")]
    wait_until(
        lambda: any(name.startswith(layout.DATA) for name in slow_store.names("list_after")),
        lambda: slow_store.requests,
    )
    with pytest.raises(UnpublishedError):
        publisher.close()
    slow.set()
    for thread in threads:
        thread.join()
    assert publisher.failure is None
    assert "report" not in caplog.text
