"""The commits in a store: what is added is found in the order of positions, and no position is two states'."""

from __future__ import annotations

import pytest

from hotdelta.chain import Kind, Position
from hotdelta.errors import ManifestError, NameTakenError, ObjectMissingError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.stores.memory import MemoryStore
from tests.chain.manifests import delta, full, node


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def added(store: MemoryStore, *texts: str) -> CommitLog:
    log = CommitLog(store)
    for text in texts:
        manifest = delta(text, "1.1")
        log.add(manifest, manifest.to_json())
    return log


def positions(log: CommitLog, kind: Kind, after: str | None) -> list[str]:
    begin = None if after is None else Position.parse(after)
    return [str(position) for position in log.positions_after(kind, begin)]


def test_positions_come_in_their_order_behind_one(store: MemoryStore) -> None:
    log = added(store, "1.2", "1.10", "1.9", "2.1", "11.3")
    store.put(f"{layout.log_prefix(Kind.DELTA)}something else", b"")
    assert positions(log, Kind.DELTA, None) == ["1.2", "1.9", "1.10", "2.1", "11.3"]
    assert positions(log, Kind.DELTA, "1.9") == ["1.10", "2.1", "11.3"]
    assert positions(log, Kind.DELTA, "1.11") == ["2.1", "11.3"]
    assert positions(log, Kind.FULL, None) == []


def test_a_manifest_comes_back_with_its_bytes(store: MemoryStore) -> None:
    manifest = full("3.17", "3.16")
    content = manifest.to_json() + b"\n"
    CommitLog(store).add(manifest, content)
    CommitLog(store).add(manifest, content)
    assert CommitLog(store).read(Kind.FULL, manifest.position) == (manifest, content)


def test_a_position_is_one_state(store: MemoryStore) -> None:
    log = added(store, "3.17")
    other = delta(node("3.17", "b"), "1.1")
    with pytest.raises(NameTakenError, match=r"3\.17"):
        log.add(other, other.to_json())
    assert log.read(Kind.DELTA, other.position)[0] == delta("3.17", "1.1")


def test_what_is_no_manifest_of_that_name_is_refused(store: MemoryStore) -> None:
    log = CommitLog(store)
    store.put(layout.log_name(Kind.DELTA, Position(1, 2)), delta("1.3", "1.2").to_json())
    store.put(layout.log_name(Kind.DELTA, Position(1, 3)), b"{}")
    store.put(layout.log_name(Kind.DELTA, Position(1, 4)), b" " * 5_000_000)
    for seq in (2, 3, 4):
        with pytest.raises(ManifestError):
            log.read(Kind.DELTA, Position(1, seq))
    with pytest.raises(ObjectMissingError):
        log.read(Kind.DELTA, Position(1, 5))


def test_what_is_removed_is_gone_with_its_files(store: MemoryStore) -> None:
    log = added(store, "1.2", "1.3")
    for seq in (2, 3):
        manifest, _ = log.read(Kind.DELTA, Position(1, seq))
        store.put(layout.data_name(manifest, manifest.files[0].name), b"x")
    log.remove(delta("1.2", "1.1"))
    assert [entry.name for entry in store.list_after(layout.DATA)] == [
        layout.data_name(delta("1.3", "1.1"), delta("1.3", "1.1").files[0].name)
    ]
    assert positions(log, Kind.DELTA, None) == ["1.3"]


def test_a_head_is_what_was_told_last_and_rubbish_is_none(store: MemoryStore) -> None:
    log = CommitLog(store)
    assert log.head() == Head()
    told = Head(full=Position(3, 1), delta=Position(3, 17))
    log.tell_head(told)
    assert log.head() == told
    log.tell_head(Head(delta=Position(3, 18)))
    assert log.head() == Head(delta=Position(3, 18))
    for rubbish in (b"", b"{", b"[]", b'{"full": 3, "delta": null}', b'{"full": "3"}', b"x" * 5000):
        store.put(layout.HEAD, rubbish)
        assert log.head() == Head()
