"""Directories in a store: serving graphs and exports. The list of what they hold is put last, and makes them exist.

Files lie under the digest of that list, each under its own: a tree that is put again finds its files, one that takes
the place of another never mixes with it, and no path of a user's asset becomes the name of an object.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain.bundle.digest import digest_bytes, digest_file
from hotdelta.chain.bundle.file_bytes import open_plainly
from hotdelta.chain.disk import Disk, publish_directory
from hotdelta.chain.format.names import TEMPORARY_PREFIX
from hotdelta.chain.format.untrusted_json import Fields
from hotdelta.errors import ManifestError, ObjectMissingError, ObjectTooLargeError
from hotdelta.remote import layout
from hotdelta.remote.fetching import Wanted, fetch
from hotdelta.remote.stores.contract import Store, put_once

MAX_LIST_BYTES = 4 * 1024 * 1024
_DIGEST_DIGITS = 64


@dataclass(frozen=True, slots=True, order=True)
class TreeFile:
    path: str
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Tree:
    """What a directory holds. Equal trees hold the same bytes."""

    name: str
    files: tuple[TreeFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def digest(self) -> str:
        """Of the list, so of everything."""
        return digest_bytes(self.to_json())

    def to_json(self) -> bytes:
        files = [{"path": file.path, "bytes": file.bytes, "blake3": file.digest} for file in self.files]
        return json.dumps({"files": files}, indent=1).encode()

    @classmethod
    def from_json(cls, name: str, content: bytes) -> Tree:
        """Raises ManifestError for what is no list of plain paths."""
        fields = Fields.parse(content, f"the list of {name}")
        return cls(name, tuple(_read_file(file) for file in fields.list_of_objects("files")))

    def object_name(self, file: TreeFile) -> str:
        return layout.tree_data_name(self.name, self.digest, file.digest)


def describe(name: str, directory: Path) -> Tree:
    """Reads all files for their digests. Raises OSError, and ManifestError for a name that no tree may have."""
    files = []
    for folder, folders, file_names in os.walk(directory):
        folders.sort()
        for file_name in file_names:
            path = Path(folder, file_name)
            descriptor = open_plainly(path)
            try:
                size, digest = digest_file(descriptor)
            finally:
                os.close(descriptor)
            files.append(TreeFile(_plain_path(path.relative_to(directory).as_posix()), size, digest))
    return Tree(name, tuple(sorted(files)))


def put_new_tree(store: Store, name: str, directory: Path) -> bool:
    """Puts a directory under a name that has none; False when another one has it. May be called again.

    Raises StoreError, OSError.
    """
    tree = describe(name, directory)
    _put_files(store, tree, directory)
    is_ours = put_once(store, layout.tree_name(name), tree.to_json())
    if not is_ours:
        _delete_files(store, tree)
    return is_ours


def replace_tree(store: Store, name: str, directory: Path) -> None:
    """Puts a directory in place of the one that has the name, unless it is the same. Raises StoreError, OSError."""
    old, tree = _find_readable(store, name), describe(name, directory)
    if tree == old:
        return
    _put_files(store, tree, directory)
    store.put(layout.tree_name(name), tree.to_json())
    if old is not None:
        _delete_files(store, old)


def find_tree(store: Store, name: str) -> Tree | None:
    """Raises StoreError, ManifestError."""
    try:
        return Tree.from_json(name, store.get(layout.tree_name(name), max_bytes=MAX_LIST_BYTES))
    except ObjectMissingError:
        return None
    except ObjectTooLargeError as error:
        raise ManifestError(f"the list of {name}: {error.message}") from error


def _find_readable(store: Store, name: str) -> Tree | None:
    """What nobody can read makes way like any other."""
    try:
        return find_tree(store, name)
    except ManifestError:
        return None


def list_trees(store: Store) -> list[str]:
    """The names of all. Raises StoreError."""
    return [entry.name.removeprefix(layout.TREES) for entry in store.list_after(layout.TREES)]


def fetch_tree(
    store: Store,
    tree: Tree,
    target: Path,
    *,
    pool: Executor,
    disk: Disk,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Makes the directory appear, whole and durable; nothing may be there. Raises StoreError, OSError."""
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{target.name}-{tree.digest[:12]}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        for folder in {(temporary / file.path).parent for file in tree.files} | {temporary}:
            disk.make_directory(folder)
        wanted = [
            Wanted(tree.object_name(file), temporary / file.path, file.bytes, file.digest)
            for file in tree.files
        ]
        fetch(store, wanted, pool=pool, disk=disk, on_bytes=on_bytes)
        publish_directory(temporary, target, disk=disk)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def delete_tree(store: Store, tree: Tree) -> None:
    """The list first, so that no reader starts on what goes away. Raises StoreError."""
    store.delete(layout.tree_name(tree.name))
    _delete_files(store, tree)


def _put_files(store: Store, tree: Tree, directory: Path) -> None:
    for file in tree.files:
        store.put_file(tree.object_name(file), directory / file.path)


def _delete_files(store: Store, tree: Tree) -> None:
    for file in tree.files:
        store.delete(tree.object_name(file))


def _read_file(fields: Fields) -> TreeFile:
    return TreeFile(
        _plain_path(fields.text("path")), fields.count("bytes"), fields.hex("blake3", _DIGEST_DIGITS)
    )


def _plain_path(path: str) -> str:
    """It comes from a store, and must not lead out of the directory."""
    if not path.isprintable() or not all(part not in ("", ".", "..") for part in path.split("/")):
        raise ManifestError(f"{path!r} is not the path of a file in a directory")
    return path
