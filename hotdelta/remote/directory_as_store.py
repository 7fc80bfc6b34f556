"""A chain directory, looked at as if it were a store: for who copies from either. It can only be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hotdelta.chain.bundle.file_bytes import open_regular, read_plainly
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.scan import Listing
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ObjectMissingError, ObjectTooLargeError, StoreError
from hotdelta.remote import layout
from hotdelta.remote.stores.contract import Entry
from hotdelta.remote.trees import describe


class DirectoryAsStore:
    """Has what the listing has, and what explains it, under the names that it would have in a store.

    Any number of threads may share it.
    """

    def __init__(self, run_dir: Path, listing: Listing) -> None:
        self._run_dir = run_dir
        self._paths: dict[str, Path] = {}
        self._lists: dict[str, bytes] = {}
        for manifest in listing.manifests:
            directory = directory_of(run_dir, manifest.kind)
            path = directory / names.manifest_name(manifest.prefix)
            self._paths[layout.log_name(manifest.kind, manifest.position)] = path
            for file in manifest.files:
                self._paths[layout.data_name(manifest, file.name)] = directory / file.name
        for schema in {manifest.schema for manifest in listing.manifests}:
            self._add_companions(schema)

    @property
    def address(self) -> str:
        return str(self._run_dir)

    def get(self, name: str, *, max_bytes: int) -> bytes:
        content = self._lists.get(name)
        if content is None:
            try:
                content = read_plainly(self._path(name), max_bytes)
            except OSError as error:
                raise self._failed(name, error) from error
        if len(content) > max_bytes:
            raise ObjectTooLargeError(f"{name} of {self._run_dir} has more than {max_bytes} bytes")
        return content

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        try:
            descriptor, size = open_regular(self._path(name))
            try:
                return memoryview(os.pread(descriptor, max(0, min(length, size - start)), start))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failed(name, error) from error

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        for name in sorted({*self._paths, *self._lists}):
            if name.startswith(prefix) and name > after:
                content = self._lists.get(name)
                yield Entry(name, self._paths[name].stat().st_size if content is None else len(content))

    def put_new(self, name: str, content: bytes) -> None:
        raise self._refused(name, content)

    def put(self, name: str, content: bytes) -> None:
        raise self._refused(name, content)

    def put_file(self, name: str, path: Path) -> None:
        raise self._refused(name, path)

    def delete(self, name: str) -> None:
        raise self._refused(name)

    def close(self) -> None:
        """Nothing is open."""

    def _add_companions(self, schema: str) -> None:
        directory = directory_of(self._run_dir, Kind.DELTA)
        path = directory / names.schema_name(schema)
        if path.is_file():
            self._paths[f"{layout.SCHEMAS}{path.name}"] = path
        graph = directory / names.serving_graph_name(schema)
        if graph.is_dir():
            tree = describe(graph.name, graph)
            self._lists[layout.tree_name(graph.name)] = tree.to_json()
            for file in tree.files:
                self._paths[tree.object_name(file)] = graph / file.path

    def _path(self, name: str) -> Path:
        path = self._paths.get(name)
        if path is None:
            raise ObjectMissingError(f"{self._run_dir} has no {name}")
        return path

    def _failed(self, name: str, error: OSError) -> StoreError:
        if isinstance(error, FileNotFoundError):
            return ObjectMissingError(f"{self._run_dir} has no {name} any more")
        return StoreError(f"{self._run_dir} could not get {name}: {error.strerror or error}")

    def _refused(self, name: str, *_: object) -> StoreError:
        return StoreError(f"{self._run_dir} is only read here, and {name} is not")
