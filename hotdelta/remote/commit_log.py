"""The commits in a store: two sequences, fulls and deltas, each in the order of positions.

Knows what is there and what is new; never decides which of it somebody needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from hotdelta.chain.format.manifest import MAX_MANIFEST_BYTES, Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.format.untrusted_json import Fields
from hotdelta.errors import ManifestError, NameTakenError, ObjectMissingError, ObjectTooLargeError
from hotdelta.remote import layout
from hotdelta.remote.stores.contract import Store, put_once

_MAX_HEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Head:
    """The newest commits of each kind, as far as the one who wrote it knew."""

    full: Position | None = None
    delta: Position | None = None

    def to_json(self) -> bytes:
        return json.dumps({"full": _text(self.full), "delta": _text(self.delta)}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Head:
        """What cannot be read is no hint, and nothing more is lost."""
        try:
            fields = Fields.parse(content, "head")
            return cls(_position(fields.optional_text("full")), _position(fields.optional_text("delta")))
        except ManifestError:
            return cls()


class CommitLog:
    """The manifests in one store. Threads may share it. Every call may raise StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, manifest: Manifest, content: bytes) -> None:
        """Makes a commit exist for readers; `content` is its manifest as the trainer wrote it. May be called again.

        Whatever the manifest names is in the store already. When the same state is there, by another way that leads to
        it, that stays. Raises NameTakenError when its position is another state's: somebody else is that run.
        """
        name = layout.log_name(manifest.kind, manifest.position)
        if not put_once(self._store, name, content) and not self._has(manifest):
            raise NameTakenError(
                f"{self._store.address} has another {manifest.kind} at {manifest.position}",
                hint="two trainers publish the same run: stop one of them, or give it an address of its own",
            )

    def _has(self, manifest: Manifest) -> bool:
        try:
            return self.read(manifest.kind, manifest.position)[0].node == manifest.node
        except (ManifestError, ObjectMissingError):
            return False

    def positions_after(self, kind: Kind, after: Position | None) -> Iterator[Position]:
        """The positions of that kind behind this one, or all, in their order."""
        begin = layout.log_name(kind, after) if after else ""
        for entry in self._store.list_after(layout.log_prefix(kind), begin):
            if (position := layout.position_of(entry.name)) is not None:
                yield position

    def read(self, kind: Kind, position: Position) -> tuple[Manifest, bytes]:
        """A manifest and its very bytes. Raises ManifestError, and ObjectMissingError when it was deleted."""
        name = layout.log_name(kind, position)
        try:
            content = self._store.get(name, max_bytes=MAX_MANIFEST_BYTES)
        except ObjectTooLargeError as error:
            raise ManifestError(f"{name}: {error.message}") from error
        manifest = Manifest.from_json(content)
        if (manifest.kind, manifest.position) != (kind, position):
            raise ManifestError(f"{name} is the manifest of the {manifest.kind} {manifest.position}")
        return manifest, content

    def remove(self, manifest: Manifest) -> None:
        """Takes a commit out of the log first, so that no reader starts on it, and then its files."""
        self.withdraw(manifest)
        self.delete_files(manifest)

    def withdraw(self, manifest: Manifest) -> None:
        """Takes a commit out of the log, and leaves its files to readers who have begun with it."""
        self._store.delete(layout.log_name(manifest.kind, manifest.position))

    def delete_files(self, manifest: Manifest) -> None:
        for file in manifest.files:
            self._store.delete(layout.data_name(manifest, file.name))

    def head(self) -> Head:
        try:
            return Head.from_json(self._store.get(layout.HEAD, max_bytes=_MAX_HEAD_BYTES))
        except (ObjectMissingError, ObjectTooLargeError):
            return Head()

    def tell_head(self, head: Head) -> None:
        self._store.put(layout.HEAD, head.to_json())


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


def _position(text: str | None) -> Position | None:
    return None if text is None else Position.parse(text)
