"""A commit on its way from a chain directory into a store: its files, what explains them, its manifest, the hint.

In this order, so that what a name leads to is there before the name is. Each step may be done twice, so whatever was
interrupted is done again. Never decides which commits go, nor when, and never changes the directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from hotdelta.chain.bundle.file_bytes import read_plainly
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import MAX_MANIFEST_BYTES, FileRecord, Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.verification import directory_of, unreadable, verify
from hotdelta.errors import DamagedError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.fetching import wait_for_all
from hotdelta.remote.stores.contract import Entry, Store
from hotdelta.remote.trees import replace_tree

# Inode and time of change of a file or directory: what tells whether it is still the one that was put.
_Version = tuple[int, int]


class Departures:
    """Puts commits of one chain directory into one store.

    Threads may share it, as long as each commit is put by one of them at a time. `pool` puts the files of a commit
    side by side; `fulls_pool` those of fulls, where they are not to hold back those of deltas. Every call may raise
    StoreError, and may be made again.
    """

    def __init__(
        self, store: Store, run_dir: Path, *, pool: Executor, fulls_pool: Executor | None = None
    ) -> None:
        self._store = store
        self._log = CommitLog(store)
        self._run_dir = run_dir
        self._pools = {Kind.DELTA: pool, Kind.FULL: fulls_pool or pool}
        self._guard_companions = threading.Lock()
        self._companions: dict[Path, _Version] = {}
        self._guard_head = threading.Lock()
        self._newest: dict[Kind, Position] = {}
        self._told: Head | None = None

    def send(self, manifest: Manifest, *, lies_in: Path | None = None) -> None:
        """Makes a commit exist for readers of the store.

        `lies_in`: the chain directory with its manifest and files, where that is another one than what explains it.
        Raises DamagedError when its files are not what it says, and NameTakenError when its position is another
        state's there.
        """
        self._send(manifest, manifest.files, lies_in or self._run_dir)

    def send_rest(self, manifest: Manifest, *, lies_in: Path | None = None) -> None:
        """`send` of a commit whose files may be there in part: only those that are missing are put.

        An object appears whole and its name has the state id, so one of that size is that file.
        """
        there = set(self._store.list_after(layout.data_prefix(manifest.node)))
        missing = [
            file
            for file in manifest.files
            if Entry(layout.data_name(manifest, file.name), file.bytes) not in there
        ]
        self._send(manifest, missing, lies_in or self._run_dir)

    def send_companions(self, schema: str) -> None:
        """What explains commits of this schema, as far as it lies in the directory and is new: schema, serving graph.

        Raises DamagedError when it cannot be read.
        """
        directory = directory_of(self._run_dir, Kind.DELTA)
        with self._guard_companions:
            self._send_companion(directory / names.schema_name(schema), self._put_schema)
            self._send_companion(directory / names.serving_graph_name(schema), self._put_tree)

    def tell_head(self) -> None:
        """Says what the newest commits are, as far as they are known here, to readers who poll that hint."""
        with self._guard_head:
            told = self._log.head() if self._told is None else self._told
            head = Head(
                full=_later(told.full, self._newest.get(Kind.FULL)),
                delta=_later(told.delta, self._newest.get(Kind.DELTA)),
            )
            if head != told:
                self._log.tell_head(head)
            self._told = head

    def _send(self, manifest: Manifest, files: Sequence[FileRecord], run_dir: Path) -> None:
        directory = directory_of(run_dir, manifest.kind)
        content = _read(directory, manifest)
        verify(run_dir, replace(manifest, files=tuple(files)))
        pool = self._pools[manifest.kind]
        wait_for_all([pool.submit(self._put_file, directory, manifest, file) for file in files])
        self.send_companions(manifest.schema)
        self._log.add(manifest, content)
        with self._guard_head:
            self._newest[manifest.kind] = manifest.position

    def _put_file(self, directory: Path, manifest: Manifest, file: FileRecord) -> None:
        path = directory / file.name
        try:
            self._store.put_file(layout.data_name(manifest, file.name), path)
        except OSError as error:
            raise unreadable(path, str(manifest.position), error) from error

    def _send_companion(self, path: Path, put: Callable[[Path], None]) -> None:
        """A trainer that begins puts another serving graph in place of the one of the same schema."""
        if not path.exists():
            return
        try:
            status = path.stat()
            version = (status.st_ino, status.st_ctime_ns)
            if self._companions.get(path) != version:
                put(path)
                self._companions[path] = version
        except OSError as error:
            # A graph that makes way for another one meanwhile is there again at the next try.
            raise unreadable(path, "the model", error) from error

    def _put_schema(self, path: Path) -> None:
        self._store.put(f"{layout.SCHEMAS}{path.name}", path.read_bytes())

    def _put_tree(self, path: Path) -> None:
        replace_tree(self._store, path.name, path)


def _read(directory: Path, manifest: Manifest) -> bytes:
    """The manifest as the trainer wrote it: what was signed stays signed."""
    path = directory / names.manifest_name(manifest.prefix)
    position = str(manifest.position)
    try:
        content = read_plainly(path, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise unreadable(path, position, error) from error
    if Manifest.from_json(content) != manifest:
        raise DamagedError(
            f"{path.name} is no longer the manifest of {position}", path=path, position=position
        )
    return content


def _later(one: Position | None, other: Position | None) -> Position | None:
    return max((position for position in (one, other) if position is not None), default=None)
