"""What every store must do; each engine's file of tests runs these over a store of its own, empty at the start.

`pytest` collects them where a class extends `StoreChecks` and defines the fixture `store`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotdelta.errors import NameTakenError, ObjectMissingError, ObjectTooLargeError
from hotdelta.remote.stores.contract import Store, put_once


class StoreChecks:
    def test_what_is_put_is_got(self, store: Store) -> None:
        store.put("log/a", b"first")
        store.put("log/a", b"second")
        store.put_new("log/b", b"")
        assert store.get("log/a", max_bytes=100) == b"second"
        assert store.get("log/b", max_bytes=100) == b""

    def test_a_new_name_is_given_once(self, store: Store) -> None:
        store.put_new("claims/1", b"mine")
        with pytest.raises(NameTakenError):
            store.put_new("claims/1", b"theirs")
        assert store.get("claims/1", max_bytes=100) == b"mine"

    def test_of_many_who_want_a_name_one_gets_it(self, store: Store) -> None:
        for number in range(4):
            name, contents = f"claims/{number}", [f"writer {n}".encode() for n in range(8)]
            barrier = threading.Barrier(len(contents))

            def claim(content: bytes, name: str = name, barrier: threading.Barrier = barrier) -> bool:
                barrier.wait()
                return put_once(store, name, content)

            with ThreadPoolExecutor(len(contents)) as pool:
                won = [
                    content for content, mine in zip(contents, pool.map(claim, contents), strict=True) if mine
                ]
            assert won == [store.get(name, max_bytes=100)]

    def test_the_same_bytes_may_be_put_again(self, store: Store) -> None:
        assert put_once(store, "log/1", b"manifest")
        assert put_once(store, "log/1", b"manifest")
        assert not put_once(store, "log/1", b"another")
        assert not put_once(store, "log/1", b"x")

    def test_what_is_not_there_is_said_to_be_missing(self, store: Store) -> None:
        with pytest.raises(ObjectMissingError):
            store.get("log/none", max_bytes=10)
        with pytest.raises(ObjectMissingError):
            store.get_range("log/none", 0, 10)
        store.delete("log/none")

    def test_what_is_deleted_is_gone(self, store: Store) -> None:
        store.put("data/x/a", b"1")
        store.delete("data/x/a")
        assert list(store.list_after("data/")) == []
        with pytest.raises(ObjectMissingError):
            store.get("data/x/a", max_bytes=10)
        store.put_new("data/x/a", b"2")
        assert store.get("data/x/a", max_bytes=10) == b"2"

    def test_an_object_that_is_too_large_is_not_read(self, store: Store) -> None:
        store.put("head", b"12345")
        assert store.get("head", max_bytes=5) == b"12345"
        with pytest.raises(ObjectTooLargeError):
            store.get("head", max_bytes=4)

    def test_a_listing_begins_behind_a_name_and_is_in_order(self, store: Store) -> None:
        for name in ("log/b", "log/a", "log/deltas/2", "log/deltas/10", "log/deltas/1", "logs", "other/1"):
            store.put(name, name.encode())
        deltas = [(entry.name, entry.bytes) for entry in store.list_after("log/deltas/")]
        assert deltas == [("log/deltas/1", 12), ("log/deltas/10", 13), ("log/deltas/2", 12)]
        assert [entry.name for entry in store.list_after("log/deltas/", "log/deltas/1")] == [
            "log/deltas/10",
            "log/deltas/2",
        ]
        assert [entry.name for entry in store.list_after("log/deltas/", "log/deltas/11")] == ["log/deltas/2"]
        assert list(store.list_after("log/deltas/", "log/deltas/2")) == []
        assert [entry.name for entry in store.list_after("log/")] == [
            "log/a",
            "log/b",
            "log/deltas/1",
            "log/deltas/10",
            "log/deltas/2",
        ]
        assert list(store.list_after("none/")) == []

    def test_a_listing_of_many_pages_is_whole(self, store: Store) -> None:
        names = [f"log/{number:06}" for number in range(1_100)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name: store.put(name, b"x"), names))
        assert [entry.name for entry in store.list_after("log/")] == names
        assert [entry.name for entry in store.list_after("log/", names[1_050])] == names[1_051:]

    def test_a_range_is_those_bytes(self, store: Store) -> None:
        content = bytes(range(256)) * 4
        store.put("data/x/a", content)
        assert bytes(store.get_range("data/x/a", 0, len(content))) == content
        assert bytes(store.get_range("data/x/a", 100, 300)) == content[100:400]
        assert bytes(store.get_range("data/x/a", 1_000, 100)) == content[1_000:]

    def test_a_large_file_arrives_whole(self, store: Store, tmp_path: Path) -> None:
        # Larger than one piece of an upload in pieces.
        content = b"".join(number.to_bytes(4, "big") for number in range(3_000_000))
        (tmp_path / "file").write_bytes(content)
        store.put_file("data/x/large", tmp_path / "file")
        store.put_file("data/x/large", tmp_path / "file")
        halves = [bytes(store.get_range("data/x/large", start, 6_000_000)) for start in (0, 6_000_000)]
        assert b"".join(halves) == content
        assert [entry.bytes for entry in store.list_after("data/")] == [len(content)]
        (tmp_path / "empty").touch()
        store.put_file("data/x/empty", tmp_path / "empty")
        assert store.get("data/x/empty", max_bytes=0) == b""
