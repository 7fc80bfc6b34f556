"""A store in the memory of this process: `memory://name`. For tests and for trying things; it dies with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from hotdelta.errors import NameTakenError, ObjectMissingError, ObjectTooLargeError
from hotdelta.remote.stores.contract import Entry


class MemoryStore:
    """Keeps the contract to the letter. Any number of threads may share it."""

    def __init__(self, address: str = "memory://") -> None:
        self._address = address
        self._objects: dict[str, bytes] = {}
        self._objects_lock = threading.Lock()

    @property
    def address(self) -> str:
        return self._address

    def put_new(self, name: str, content: bytes) -> None:
        with self._objects_lock:
            if name in self._objects:
                raise NameTakenError(f"{self._address} has an object {name} already")
            self._objects[name] = bytes(content)

    def put(self, name: str, content: bytes) -> None:
        with self._objects_lock:
            self._objects[name] = bytes(content)

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    def get(self, name: str, *, max_bytes: int) -> bytes:
        content = self._content(name)
        if len(content) > max_bytes:
            raise ObjectTooLargeError(f"{name} of {self._address} has more than {max_bytes} bytes")
        return content

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        return memoryview(self._content(name))[start : start + length]

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        with self._objects_lock:
            found = sorted(
                Entry(name, len(content))
                for name, content in self._objects.items()
                if name.startswith(prefix) and name > after
            )
        return iter(found)

    def delete(self, name: str) -> None:
        with self._objects_lock:
            self._objects.pop(name, None)

    def close(self) -> None:
        """Nothing is open."""

    def _content(self, name: str) -> bytes:
        with self._objects_lock:
            content = self._objects.get(name)
        if content is None:
            raise ObjectMissingError(f"{self._address} has no object {name}")
        return content
