"""Brings what a store has into a local chain directory: one commit, a schema, a serving graph.

A commit arrives as a trainer would have made it here: its files first, verified and durable, and then its manifest,
byte for byte. Never decides what is worth bringing. Only who holds the lock of the directory may call it, and whatever
was killed in the middle is called again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain.bundle.digest import digest_bytes, digest_file
from hotdelta.chain.bundle.file_bytes import open_regular, read_plainly
from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import FileRecord, Kind, Manifest
from hotdelta.chain.format.schema import MAX_SCHEMA_BYTES
from hotdelta.chain.history.scan import is_manifest_name
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store.commit import commit_as_written, publish_file
from hotdelta.chain.write_failure import translated
from hotdelta.errors import CommitError, ManifestError, ObjectDamagedError, ObjectMissingError
from hotdelta.remote import layout
from hotdelta.remote.fetching import Wanted, fetch
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.trees import Tree, describe, fetch_tree, find_tree


def fetch_commit(
    store: Store,
    manifest: Manifest,
    content: bytes,
    run_dir: Path,
    *,
    pool: Executor,
    disk: Disk,
    roles: Collection[str] = names.ROLES,
    on_bytes: Callable[[int], None] | None = None,
) -> bool:
    """Makes a commit of the store one of a local chain; `manifest` and `content` are what CommitLog.read says of it.

    `roles`: which of its files (names.SERVING_ROLES, or all); those that an earlier call left out are brought later.
    `on_bytes` hears the size of each piece that arrives, in threads of `pool`. False when all was here already.

    Raises StoreError (ObjectMissingError when it was deleted there), ManifestError for a manifest that no trainer
    writes, and CommitError when it cannot be written, or its name here is another commit's. Then nothing of it is here
    for readers that was not before.
    """
    arrived = fetch_files(
        store, manifest, content, run_dir, pool=pool, disk=disk, roles=roles, on_bytes=on_bytes
    )
    if arrived is None:
        return False
    arrived.commit(disk=disk)
    return True


@dataclass(frozen=True, slots=True)
class ArrivedFiles:
    """The files of a commit, here and durable under temporary names; for readers they are not here yet."""

    manifest: Manifest
    content: bytes
    prepared: PreparedBundle
    # Its manifest is here already, and only some of its files were not.
    is_committed: bool

    def commit(self, *, disk: Disk) -> None:
        """Raises CommitError; then nothing of it is here for readers that was not before."""
        if self.is_committed:
            with translated(f"fetching {self.manifest.position}", self.prepared.directory):
                _add_files(self.prepared, disk)
        else:
            commit_as_written(self.prepared, self.manifest, self.content, disk=disk)

    def abandon(self, *, disk: Disk) -> None:
        """Nobody wants it any more."""
        _unlink_quietly(self.prepared, disk)


def fetch_files(
    store: Store,
    manifest: Manifest,
    content: bytes,
    run_dir: Path,
    *,
    pool: Executor,
    disk: Disk,
    roles: Collection[str],
    on_bytes: Callable[[int], None] | None = None,
) -> ArrivedFiles | None:
    """The first part of fetch_commit, of which several may go on at once; None when all is here already."""
    directory, name = directory_of(run_dir, manifest.kind), names.manifest_name(manifest.prefix)
    if not is_manifest_name(name):
        raise ManifestError(
            f"the prefix of {manifest.position} is {manifest.prefix!r}, which no trainer writes"
        )
    with translated(f"fetching {manifest.position}", directory):
        disk.make_directory(directory)
        is_committed = _has_content(directory / name, content)
        missing = tuple(
            file
            for file in manifest.files
            if file.role in roles
            and not _is_there(directory / file.name, file, disk, is_committed=is_committed)
        )
        if is_committed and not missing:
            return None
        temporary_names = {file.name: f"{names.TEMPORARY_PREFIX}{file.name}" for file in missing}
        prepared = PreparedBundle(directory, manifest.prefix, missing, temporary_names)
        try:
            fetch(store, _wanted(manifest, prepared), pool=pool, disk=disk, on_bytes=on_bytes)
        except BaseException:
            _unlink_quietly(prepared, disk)
            raise
    return ArrivedFiles(manifest, content, prepared, is_committed)


def is_whole(run_dir: Path, manifest: Manifest, roles: Collection[str]) -> bool:
    """Whether the files of a commit are here, as far as their sizes tell: somebody may have tidied up."""
    directory = directory_of(run_dir, manifest.kind)
    try:
        return all(
            (directory / file.name).lstat().st_size == file.bytes
            for file in manifest.files
            if file.role in roles
        )
    except OSError:
        return False


def fetch_schema(store: Store, digest: str, run_dir: Path, *, disk: Disk) -> bool:
    """Brings the schema that manifests name by its digest; False when the store has none.

    Raises StoreError (retryable when it is damaged there), CommitError.
    """
    directory, name = directory_of(run_dir, Kind.DELTA), names.schema_name(digest)
    with translated(f"fetching {name}", directory):
        disk.make_directory(directory)
        with contextlib.suppress(FileNotFoundError):
            if digest_bytes(read_plainly(str(directory / name), MAX_SCHEMA_BYTES)) == digest:
                return True
            # What somebody left under the name of a schema is none, and keeps readers from it.
            disk.unlink(directory / name)
    try:
        content = store.get(f"{layout.SCHEMAS}{name}", max_bytes=MAX_SCHEMA_BYTES)
    except ObjectMissingError:
        return False
    if digest_bytes(content) != digest:
        raise ObjectDamagedError(
            f"{layout.SCHEMAS}{name} of {store.address} is not the schema {digest}",
            hint="start the trainer again: it writes a new one",
        )
    publish_file(directory, name, content, disk)
    return True


def fetch_serving_graph(store: Store, digest: str, run_dir: Path, *, pool: Executor, disk: Disk) -> bool:
    """Brings the serving graph of a schema, also in place of an older one; False when the store has none.

    Raises StoreError, ManifestError, CommitError.
    """
    directory, name = directory_of(run_dir, Kind.DELTA), names.serving_graph_name(digest)
    tree = find_tree(store, name)
    if tree is None:
        return False
    with translated(f"fetching {name}", directory):
        disk.make_directory(directory)
        target = directory / name
        if target.is_dir() and describe(name, target) == tree:
            return True
        _replace_tree(store, tree, target, pool=pool, disk=disk)
    return True


def _replace_tree(store: Store, tree: Tree, target: Path, *, pool: Executor, disk: Disk) -> None:
    """The old directory goes when the new one is here and durable."""
    new, old = (target.with_name(f"{names.TEMPORARY_PREFIX}{age}-{target.name}") for age in ("new", "old"))
    try:
        for path in (new, old):
            shutil.rmtree(path, ignore_errors=True)
        fetch_tree(store, tree, new, pool=pool, disk=disk)
        if target.exists():
            disk.rename(target, old)
        disk.rename(new, target)
        disk.sync_directory(target.parent)
    finally:
        for path in (new, old):
            shutil.rmtree(path, ignore_errors=True)


def _wanted(manifest: Manifest, prepared: PreparedBundle) -> list[Wanted]:
    return [
        Wanted(
            layout.data_name(manifest, file.name),
            prepared.directory / prepared.temporary_names[file.name],
            file.bytes,
            file.digest,
        )
        for file in prepared.files
    ]


def _unlink_quietly(prepared: PreparedBundle, disk: Disk) -> None:
    for temporary in prepared.temporary_names.values():
        with contextlib.suppress(OSError):
            disk.unlink(prepared.directory / temporary)


def _add_files(prepared: PreparedBundle, disk: Disk) -> None:
    """Files of a commit that is here without them. Raises OSError."""
    for name, temporary in prepared.temporary_names.items():
        disk.rename(prepared.directory / temporary, prepared.directory / name)
    disk.sync_directory(prepared.directory)


def _is_there(path: Path, file: FileRecord, disk: Disk, *, is_committed: bool) -> bool:
    """Of a commit that is here the size tells. What a crash left before it was one is looked at, and makes way."""
    try:
        descriptor, size = open_regular(path)
    except FileNotFoundError:
        return False
    try:
        if is_committed:
            return size == file.bytes
        if digest_file(descriptor) == (file.bytes, file.digest):
            return True
    finally:
        os.close(descriptor)
    disk.unlink(path)
    return False


def _has_content(path: Path, content: bytes) -> bool:
    """Raises CommitError when the name is another commit's, OSError."""
    try:
        found = read_plainly(str(path), len(content))
    except FileNotFoundError:
        return False
    if found != content:
        raise CommitError(
            f"{path.name} is another commit than the one of that name in the store",
            path=path,
            hint="two histories meet in this directory: use an empty one",
        )
    return True
