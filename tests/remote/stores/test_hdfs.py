"""HDFS keeps the contract: on a real NameNode and DataNode, which `make test-hdfs` brings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdelta.errors import ObjectMissingError, StoreError
from hotdelta.remote.copying import copy_chain, look_at
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.stores.probe import Fitness, probe, require_fit
from tests.golden.golden_chains import golden_chain
from tests.remote.hdfs_server import HdfsServer, running_hdfs
from tests.remote.stores.checks_of_a_store import StoreChecks

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def store(hdfs: HdfsServer) -> Store:
    return open_store(hdfs.address(f"models/{uuid.uuid4().hex[:12]}"))


class TestHdfsStore(StoreChecks):
    def test_what_is_put_leaves_nothing_else(self, store: Store, hdfs: HdfsServer) -> None:
        store.put("data/a/b", b"1")
        store.put_new("data/a/c", b"2")
        above = open_store(store.address.rpartition("/")[0])
        mine = store.address.rpartition("/")[2]
        assert [e.name for e in above.list_after(f"{mine}/")] == [f"{mine}/data/a/b", f"{mine}/data/a/c"]

    def test_a_range_behind_the_end_is_empty(self, store: Store) -> None:
        store.put("data/a", b"123")
        assert bytes(store.get_range("data/a", 3, 5)) == b""
        with pytest.raises(ObjectMissingError):
            store.get_range("data/none", 0, 0)


def test_it_is_fit_for_trainers(store: Store) -> None:
    found = {finding.promise: finding.fitness for finding in probe(store)}
    assert set(found.values()) == {Fitness.KEPT}, found
    require_fit(store)
    assert list(store.list_after("")) == []


def test_a_chain_goes_there_and_back(store: Store, tmp_path: Path) -> None:
    chain = golden_chain("forked").copy_to(tmp_path / "here")
    found = look_at(chain)
    copy_chain(chain, found, store)
    assert look_at(store) == found
    copy_chain(store, found, tmp_path / "back")
    assert look_at(tmp_path / "back") == found


def test_a_server_that_is_away_is_worth_trying_again(hdfs: HdfsServer) -> None:
    store = open_store("hdfs://127.0.0.1:9/models")
    with pytest.raises(StoreError) as failed:
        store.get("head", max_bytes=1)
    assert failed.value.retryable
    assert not isinstance(failed.value, ObjectMissingError)


def test_who_may_not_write_there_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("head", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    other = open_store(store.address)
    assert other.get("head", max_bytes=1) == b"1"
    with pytest.raises(StoreError, match="HADOOP_USER_NAME") as failed:
        other.put("head", b"2")
    assert not failed.value.retryable
    with pytest.raises(StoreError, match="HADOOP_USER_NAME") as failed:
        other.delete("head")
    assert not failed.value.retryable
    assert store.get("head", max_bytes=1) == b"1"
