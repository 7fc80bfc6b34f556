"""What goes from a store: old commits after a while, and what killed publishes left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import Kind, Manifest, Node, SigningKey
from hotdelta.chain.format import names
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.orders import OrderBox, Verb
from hotdelta.remote.publish.retention import GRACE_SECONDS, StoreRetention
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.trees import replace_tree
from tests.chain.manifests import delta, full
from tests.remote.publish.test_claims import Clock

HISTORY = (
    full("1.1"),
    delta("1.2", "1.1"),
    delta("1.3", "1.2"),
    full("1.3", "1.2"),
    delta("2.1", "1.3"),
    full("2.1", "1.3"),
    delta("2.2", "2.1"),
)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for manifest in HISTORY:
        put(store, manifest)
    return store


@pytest.fixture
def clock() -> Clock:
    return Clock()


def put(store: Store, manifest: Manifest) -> None:
    for file in manifest.files:
        store.put(layout.data_name(manifest, file.name), b"x")
    CommitLog(store).add(manifest, manifest.to_json())


def retention(store: Store, clock: Clock, *, keep: int = 1, ours: tuple[Node, ...] = ()) -> StoreRetention:
    return StoreRetention(store, keep_fulls=keep, is_ours=lambda node: node in ours, clock=clock)


def in_log(store: Store) -> list[str]:
    return sorted(f"{kind} {at}" for kind in Kind for at in CommitLog(store).positions_after(kind, None))


def files(store: Store) -> set[str]:
    return {entry.name for entry in store.list_after(layout.DATA)}


def test_names_go_first_and_files_when_nobody_can_be_at_them(store: MemoryStore, clock: Clock) -> None:
    keeper = retention(store, clock)
    keeper.withdraw_expired(run=2)
    assert in_log(store) == ["delta 2.1", "delta 2.2", "full 2.1"]
    assert len(files(store)) == len(HISTORY)
    clock.now += GRACE_SECONDS - 1
    keeper.delete_what_is_over()
    assert len(files(store)) == len(HISTORY)
    clock.now += 2
    keeper.delete_what_is_over()
    assert files(store) == {layout.data_name(m, m.files[0].name) for m in HISTORY[4:]}


def test_as_many_fulls_stay_as_are_wanted(store: MemoryStore, clock: Clock) -> None:
    retention(store, clock, keep=3).withdraw_expired(run=2)
    assert len(in_log(store)) == len(HISTORY)
    retention(store, clock, keep=2).withdraw_expired(run=2)
    assert in_log(store) == ["delta 1.3", "delta 2.1", "delta 2.2", "full 1.3", "full 2.1"]


def test_what_a_killed_publish_left_goes_after_two_looks(store: MemoryStore, clock: Clock) -> None:
    left, later, own = delta("1.9", "1.3"), delta("3.1", "2.2"), delta("2.3", "2.2")
    resent = delta("1.8", "1.3")
    for manifest in (left, later, own, resent):
        store.put(layout.data_name(manifest, manifest.files[0].name), b"half")
    store.put(f"{layout.DATA}rubbish", b"")
    keeper = retention(store, clock, keep=5, ours=(resent.node,))
    keeper.withdraw_expired(run=2)
    before = files(store)
    keeper.delete_what_is_over()
    clock.now += GRACE_SECONDS
    keeper.delete_what_is_over()
    assert before - files(store) == {layout.data_name(left, left.files[0].name)}
    assert len(in_log(store)) == len(HISTORY)


def test_what_got_its_name_between_two_looks_stays(store: MemoryStore, clock: Clock) -> None:
    late = delta("1.9", "1.3")
    store.put(layout.data_name(late, late.files[0].name), b"x")
    keeper = retention(store, clock, keep=5)
    keeper.withdraw_expired(run=2)
    put(store, late)
    clock.now += GRACE_SECONDS
    keeper.delete_what_is_over()
    assert layout.data_name(late, late.files[0].name) in files(store)


def test_what_a_newer_hotdelta_wrote_stays(store: MemoryStore, clock: Clock) -> None:
    newer = delta("1.9", "1.3")
    store.put(layout.data_name(newer, newer.files[0].name), b"x")
    store.put(layout.log_name(Kind.DELTA, newer.position), b'{"format_version": 99}')
    keeper = retention(store, clock)
    for _ in range(3):
        keeper.withdraw_expired(run=2)
        clock.now += GRACE_SECONDS
    assert "delta 1.9" in in_log(store)
    assert layout.data_name(newer, newer.files[0].name) in files(store)


def test_files_of_a_graph_that_made_way_go_too(store: MemoryStore, clock: Clock, tmp_path: Path) -> None:
    name = f"{names.SERVING_GRAPH_PREFIX}abc"
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    replace_tree(store, name, tmp_path)
    current = {entry.name for entry in store.list_after(layout.TREES_DATA)}
    old, export = (layout.tree_data_name(tree, "0" * 64, "1" * 64) for tree in (name, "7"))
    for orphan in (old, export):
        store.put(orphan, b"half")
    keeper = retention(store, clock, keep=5)
    keeper.withdraw_expired(run=2)
    clock.now += GRACE_SECONDS
    keeper.delete_what_is_over()
    assert {entry.name for entry in store.list_after(layout.TREES_DATA)} == {*current, export}


def test_files_of_a_graph_whose_list_nobody_can_read_stay(store: MemoryStore, clock: Clock) -> None:
    name = f"{names.SERVING_GRAPH_PREFIX}abc"
    store.put(layout.tree_name(name), b'{"files": 1}')
    left = layout.tree_data_name(name, "0" * 64, "1" * 64), layout.data_name(delta("1.9", "1.3"), "left")
    for orphan in left:
        store.put(orphan, b"half")
    keeper = retention(store, clock, keep=5)
    keeper.withdraw_expired(run=2)
    clock.now += GRACE_SECONDS
    keeper.delete_what_is_over()
    there = {entry.name for entry in store.list_after("")}
    assert [orphan in there for orphan in left] == [True, False]


def test_what_the_fleet_is_ordered_to_be_at_stays_until_it_follows_again(
    store: MemoryStore, clock: Clock
) -> None:
    key, box, subject = SigningKey(b"k" * 32), OrderBox(store), retention(store, clock)
    box.give(Verb.PIN, HISTORY[1].node, given_by="ops", key=key)
    subject.withdraw_expired(run=2)
    assert in_log(store) == ["delta 1.2", "delta 1.3", "delta 2.1", "delta 2.2", "full 1.1", "full 2.1"]
    box.give(Verb.RESUME, HISTORY[-1].node, given_by="ops", key=key)
    subject.withdraw_expired(run=2)
    assert in_log(store) == ["delta 2.1", "delta 2.2", "full 2.1"]
