"""Objects become files whole, in pieces and several at a time, or they do not count."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from hotdelta.chain import Disk
from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.errors import StoreError
from hotdelta.remote.fetching import PIECE_BYTES, Wanted, fetch
from hotdelta.remote.stores.memory import MemoryStore

CONTENT = bytes(range(251)) * (2 * PIECE_BYTES // 251 + 1000)


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def wanted(path: Path, content: bytes) -> Wanted:
    return Wanted(path.name, path, len(content), digest_bytes(content))


def test_files_arrive_whole_and_their_bytes_are_told(tmp_path: Path, pool: Executor) -> None:
    store, told = MemoryStore(), list[int]()
    contents = {"large": CONTENT, "small": b"x", "empty": b""}
    for name, content in contents.items():
        store.put(name, content)
    (tmp_path / "small").write_bytes(b"left behind by one who was killed")
    files = [wanted(tmp_path / name, content) for name, content in contents.items()]
    fetch(store, files, pool=pool, disk=Disk(), on_bytes=told.append)
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents
    assert sum(told) == len(CONTENT) + 1
    assert max(told) == PIECE_BYTES


@pytest.mark.parametrize("found", [CONTENT[:-1], CONTENT[:100], b"y" + CONTENT[1:], None])
def test_what_is_not_what_was_meant_is_an_error(tmp_path: Path, pool: Executor, found: bytes | None) -> None:
    store = MemoryStore()
    if found is not None:
        store.put("large", found)
    with pytest.raises(StoreError) as raised:
        fetch(store, [wanted(tmp_path / "large", CONTENT)], pool=pool, disk=Disk())
    assert raised.value.retryable is (found is not None)
    store.put("large", CONTENT)
    fetch(store, [wanted(tmp_path / "large", CONTENT)], pool=pool, disk=Disk())
    assert (tmp_path / "large").read_bytes() == CONTENT
