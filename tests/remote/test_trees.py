"""Directories go to a store whole and come back whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from hotdelta.chain import Disk
from hotdelta.errors import ManifestError, StoreError
from hotdelta.remote import layout
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.trees import (
    Tree,
    delete_tree,
    fetch_tree,
    find_tree,
    list_trees,
    put_new_tree,
    replace_tree,
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def saved_model(tmp_path: Path) -> Path:
    return write(
        tmp_path / "model", {"saved_model.pb": b"graph", "variables/empty": b"", "assets/ein Wort.txt": b"a"}
    )


def write(directory: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def read(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def existing(store: MemoryStore, name: str) -> Tree:
    tree = find_tree(store, name)
    assert tree is not None
    return tree


def test_a_tree_comes_back_as_it_was(
    store: MemoryStore, pool: Executor, saved_model: Path, tmp_path: Path
) -> None:
    assert put_new_tree(store, "1", saved_model)
    assert put_new_tree(store, "1", saved_model), "the same may be put again"
    fetch_tree(store, existing(store, "1"), tmp_path / "back", pool=pool, disk=Disk())
    assert read(tmp_path / "back") == read(saved_model)
    assert list_trees(store) == ["1"]


def test_a_name_that_another_tree_has_is_left_to_it(
    store: MemoryStore, saved_model: Path, tmp_path: Path
) -> None:
    put_new_tree(store, "1", saved_model)
    before = list(store.list_after(""))
    assert not put_new_tree(store, "1", write(tmp_path / "other", {"saved_model.pb": b"another graph"}))
    assert list(store.list_after("")) == before


def test_a_tree_that_takes_the_place_of_another_leaves_nothing_of_it(
    store: MemoryStore, pool: Executor, saved_model: Path, tmp_path: Path
) -> None:
    replace_tree(store, "graph", saved_model)
    other = write(tmp_path / "other", {"saved_model.pb": b"graph", "variables/more": b"xyz"})
    replace_tree(store, "graph", other)
    replace_tree(store, "graph", other)
    fetch_tree(store, existing(store, "graph"), tmp_path / "back", pool=pool, disk=Disk())
    assert read(tmp_path / "back") == read(other)
    assert len(list(store.list_after(layout.TREES_DATA))) == 2


def test_a_deleted_tree_is_gone(store: MemoryStore, saved_model: Path) -> None:
    put_new_tree(store, "1", saved_model)
    delete_tree(store, existing(store, "1"))
    assert find_tree(store, "1") is None
    assert list(store.list_after("")) == []


@pytest.mark.parametrize("damage", [b"grapH", b"gra", None])
def test_a_tree_that_arrives_otherwise_does_not_appear(
    store: MemoryStore, pool: Executor, saved_model: Path, tmp_path: Path, damage: bytes | None
) -> None:
    put_new_tree(store, "1", saved_model)
    tree = existing(store, "1")
    name = next(tree.object_name(file) for file in tree.files if file.path == "saved_model.pb")
    if damage is None:
        store.delete(name)
    else:
        store.put(name, damage)
    with pytest.raises(StoreError):
        fetch_tree(store, tree, tmp_path / "back" / "1", pool=pool, disk=Disk())
    assert not list((tmp_path / "back").iterdir())


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "a//b", "a/./b", "a/../../b", "", "a\nb", "a\0b"]
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    tree = Tree("1", ())
    content = tree.to_json().replace(b"[]", b'[{"path": %s, "bytes": 1, "blake3": "%s"}]')
    with pytest.raises(ManifestError):
        Tree.from_json("1", content % (json.dumps(path).encode(), b"0" * 64))


def test_a_list_of_another_kind_is_refused() -> None:
    for content in (b"", b"[]", b'{"files": 3}', b'{"files": [{"path": "a"}]}'):
        with pytest.raises(ManifestError):
            Tree.from_json("1", content)
