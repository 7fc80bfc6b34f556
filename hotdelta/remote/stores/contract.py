"""What we need of a store, and nothing more: six verbs over objects that have names and bytes.

There is no rename, no lock and no event in it, since object stores have none. What makes a chain safe on it is order
(what is referred to is put before what refers to it) and one condition (`put_new`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotdelta.errors import NameTakenError, ObjectMissingError, ObjectTooLargeError, StoreError

# A put whose name seems taken, though nothing is there: a store answers so when two puts of a name met.
_TRIES_OF_A_MET_PUT = 8
_SECONDS_BETWEEN_TRIES = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """An object in a listing."""

    name: str
    bytes: int


class Store(Protocol):
    """Objects under one address. Names are relative to it, with `/` between their parts, all of them plain ASCII.

    Any number of threads may share one. Every verb may raise StoreError: `retryable` when the store is away, slow or
    busy, and not when it refuses us. After a StoreError of a put or a delete nobody knows whether it happened, so
    callers only do what may be done twice. No message holds a secret.
    """

    @property
    def address(self) -> str:
        """The address as people may see it: without credentials."""
        ...

    def put_new(self, name: str, content: bytes) -> None:
        """Makes an object appear whole under a name that has none; of many who try, at most one succeeds.

        Raises NameTakenError when the name may be taken, also by an earlier try of ours whose answer was lost, and
        also when two puts met and both were refused. `put_once` tells these apart.
        """
        ...

    def put(self, name: str, content: bytes) -> None:
        """Makes an object appear whole, in place of the one that has the name. Readers see the old one or the new."""
        ...

    def put_file(self, name: str, path: Path) -> None:
        """`put` of a file of any size, in pieces: its memory is bounded. Raises OSError when it cannot be read."""
        ...

    def get(self, name: str, *, max_bytes: int) -> bytes:
        """The whole object. Raises ObjectMissingError, and ObjectTooLargeError above `max_bytes`."""
        ...

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        """These bytes; fewer when the object ends before. Raises ObjectMissingError."""
        ...

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """The objects whose names begin with `prefix` and come behind `after`, in the order of their names.

        What was put before the call began is in it. `prefix` is empty or ends with a slash.
        """
        ...

    def delete(self, name: str) -> None:
        """Nothing is there afterwards; that nothing was there before is no error."""
        ...

    def close(self) -> None:
        """Gives up connections and threads; no verb is called after it."""
        ...


def put_once(store: Store, name: str, content: bytes, *, stop: threading.Event | None = None) -> bool:
    """`put_new` that ends with the truth: True when the name holds these bytes now, False when it holds others.

    May be called again after any StoreError. Raises StoreError.
    """
    waiting = stop or threading.Event()
    for _ in range(_TRIES_OF_A_MET_PUT):
        try:
            store.put_new(name, content)
        except NameTakenError:
            try:
                return store.get(name, max_bytes=max(len(content), 1)) == content
            except ObjectMissingError:
                waiting.wait(_SECONDS_BETWEEN_TRIES)
            except ObjectTooLargeError:
                return False
        else:
            return True
    raise StoreError(
        f"{store.address} says again and again that {name} is there, and that it is not",
        retryable=True,
        hint="run `hotdelta doctor` on the address: does it keep conditional puts?",
    )
