"""A commit exists in a store when all that it names is there, and is put as often as it takes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Manifest, directory_of
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError, NameTakenError, StoreError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.departures import Departures
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.trees import find_tree
from tests.chain.table_chain import SCHEMA, TableChain
from tests.remote.tried_stores import CountingStore, StumblingStore


@pytest.fixture
def chain(tmp_path: Path) -> TableChain:
    """A full, a delta, and what trainers leave beside them."""
    chain = TableChain(tmp_path / "run")
    chain.delta([1, 2])
    beside = directory_of(chain.run_dir, Kind.DELTA)
    (beside / names.schema_name(SCHEMA)).write_bytes(b"the schema")
    write_graph(chain.run_dir, b"graph")
    return chain


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def write_graph(run_dir: Path, content: bytes) -> None:
    graph = directory_of(run_dir, Kind.DELTA) / names.serving_graph_name(SCHEMA)
    graph.mkdir()
    (graph / "saved_model.pb").write_bytes(content)


def departures(chain: TableChain, store: Store, pool: Executor) -> Departures:
    return Departures(store, chain.run_dir, pool=pool)


def require_whole(store: Store, chain: TableChain, manifest: Manifest) -> None:
    directory = directory_of(chain.run_dir, manifest.kind)
    content = (directory / names.manifest_name(manifest.prefix)).read_bytes()
    assert CommitLog(store).read(manifest.kind, manifest.position) == (manifest, content)
    for file in manifest.files:
        name = layout.data_name(manifest, file.name)
        assert store.get(name, max_bytes=file.bytes) == (directory / file.name).read_bytes()


def test_what_a_name_leads_to_is_there_before_it(chain: TableChain, pool: Executor) -> None:
    store = CountingStore(MemoryStore())
    sent = departures(chain, store, pool)
    for manifest in chain.manifests:
        sent.send(manifest)
        sent.tell_head()
        require_whole(store.inner, chain, manifest)
    full, delta = chain.manifests
    puts = store.names("put", "put_new", "put_file")
    files = {layout.data_name(full, file.name) for file in full.files}
    assert set(puts[: len(files)]) == files
    assert puts[len(files)] == f"{layout.SCHEMAS}{names.schema_name(SCHEMA)}"
    assert puts[len(files) + 2] == layout.tree_name(names.serving_graph_name(SCHEMA))
    assert puts[len(files) + 3 :][:2] == [layout.log_name(Kind.FULL, full.position), layout.HEAD]
    # What explains the second commit is there already.
    assert len(puts) == len(files) + 5 + len(delta.files) + 2
    assert CommitLog(store.inner).head() == Head(full=full.position, delta=delta.position)


@pytest.mark.parametrize("is_done", [False, True], ids=["not carried out", "answer lost"])
def test_a_commit_is_sent_again_until_it_is_there_whichever_request_fails(
    chain: TableChain, pool: Executor, is_done: bool
) -> None:
    whole = CountingStore(MemoryStore())
    departures(chain, whole, pool).send(chain.manifests[0])
    for fails_at in range(1, len(whole.requests) + 1):
        store = StumblingStore(MemoryStore(), fails_at=fails_at, is_done=is_done)
        sent = departures(chain, store, pool)
        try:
            sent.send(chain.manifests[0])
        except StoreError:
            sent.send_rest(chain.manifests[0])
        else:
            assert is_done, "only a lost answer of the manifest can be found out at once"
        require_whole(store.inner, chain, chain.manifests[0])
        assert list(store.inner.list_after("")) == list(whole.inner.list_after(""))
        files = [name for name in store.names("put_file") if name.startswith(layout.DATA)]
        assert not is_done or len(files) == len(set(files)), "nothing is put twice that arrived"


def test_another_serving_graph_of_the_same_schema_takes_its_place(chain: TableChain, pool: Executor) -> None:
    store = MemoryStore()
    sent = departures(chain, store, pool)
    sent.send(chain.manifests[0])
    graph = directory_of(chain.run_dir, Kind.DELTA) / names.serving_graph_name(SCHEMA)
    graph.rename(graph.with_name("old"))
    write_graph(chain.run_dir, b"another graph")
    sent.send(chain.manifests[1])
    tree = find_tree(store, graph.name)
    assert tree is not None
    assert store.get(tree.object_name(tree.files[0]), max_bytes=100) == b"another graph"
    assert len(list(store.list_after(layout.TREES_DATA))) == 1, "the old one is gone"


def test_a_chain_without_a_serving_graph_is_sent_as_it_is(tmp_path: Path, pool: Executor) -> None:
    chain, store = TableChain(tmp_path / "run"), MemoryStore()
    departures(chain, store, pool).send(chain.manifests[0])
    require_whole(store, chain, chain.manifests[0])


def test_a_damaged_file_never_gets_a_manifest(chain: TableChain, pool: Executor) -> None:
    delta, store = chain.manifests[1], MemoryStore()
    path = chain.path(delta, names.ROLE_TRAINING)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DamagedError, match=path.name):
        departures(chain, store, pool).send(delta)
    path.unlink()
    with pytest.raises(DamagedError, match=path.name):
        departures(chain, store, pool).send_rest(delta)
    assert list(store.list_after("log/")) == []


def test_a_manifest_that_is_not_the_one_that_was_meant_is_not_sent(chain: TableChain, pool: Executor) -> None:
    delta, store = chain.manifests[1], MemoryStore()
    with pytest.raises(DamagedError, match=r"1\.2"):
        departures(chain, store, pool).send(replace(delta, step=7))
    (directory_of(chain.run_dir, Kind.DELTA) / names.manifest_name(delta.prefix)).unlink()
    with pytest.raises(DamagedError, match="cannot be read"):
        departures(chain, store, pool).send(delta)
    assert list(store.list_after("")) == []


def test_a_position_of_somebody_else_is_left_to_him(
    chain: TableChain, pool: Executor, tmp_path: Path
) -> None:
    other, store = TableChain(tmp_path / "other"), MemoryStore()
    departures(other, store, pool).send(other.manifests[0])
    with pytest.raises(NameTakenError, match=r"1\.1"):
        departures(chain, store, pool).send(chain.manifests[0])
    require_whole(store, other, other.manifests[0])


def test_the_hint_never_goes_back(chain: TableChain, pool: Executor) -> None:
    store = MemoryStore()
    ahead = Head(full=chain.manifests[1].position)
    CommitLog(store).tell_head(ahead)
    sent = departures(chain, store, pool)
    sent.tell_head()
    sent.send(chain.manifests[0])
    sent.tell_head()
    assert CommitLog(store).head() == ahead
    sent.send(chain.manifests[1])
    sent.tell_head()
    assert CommitLog(store).head() == replace(ahead, delta=chain.manifests[1].position)
