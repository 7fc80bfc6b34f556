"""Stores around a store: one that counts what it is asked, and one that fails at the n-th request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from hotdelta.errors import StoreError
from hotdelta.remote.stores.contract import Entry, Store

T = TypeVar("T")


class CountingStore:
    """Hands every request on, and remembers which verb was asked of which name. Any number of threads may share it."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.requests: list[tuple[str, str]] = []
        self._guard_requests = threading.Lock()

    @property
    def address(self) -> str:
        return self.inner.address

    def names(self, *verbs: str) -> list[str]:
        """Of the objects that these verbs were asked of, in order."""
        return [name for verb, name in self.requests if verb in verbs]

    def put_new(self, name: str, content: bytes) -> None:
        self._ask("put_new", name, lambda: self.inner.put_new(name, content))

    def put(self, name: str, content: bytes) -> None:
        self._ask("put", name, lambda: self.inner.put(name, content))

    def put_file(self, name: str, path: Path) -> None:
        self._ask("put_file", name, lambda: self.inner.put_file(name, path))

    def get(self, name: str, *, max_bytes: int) -> bytes:
        return self._ask("get", name, lambda: self.inner.get(name, max_bytes=max_bytes))

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        return self._ask("get_range", name, lambda: self.inner.get_range(name, start, length))

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        return self._ask("list_after", prefix, lambda: iter(list(self.inner.list_after(prefix, after))))

    def delete(self, name: str) -> None:
        self._ask("delete", name, lambda: self.inner.delete(name))

    def close(self) -> None:
        self.inner.close()

    def _ask(self, verb: str, name: str, do: Callable[[], T]) -> T:
        with self._guard_requests:
            self.requests.append((verb, name))
            count = len(self.requests)
        return self._answer(count, do)

    def _answer(self, count: int, do: Callable[[], T]) -> T:
        return do()


class StumblingStore(CountingStore):
    """The n-th request fails, counted from 1: before it was carried out, or after it, when its answer is lost."""

    def __init__(self, store: Store, *, fails_at: int, is_done: bool = False) -> None:
        super().__init__(store)
        self.fails_at = fails_at
        self._is_done = is_done

    def _answer(self, count: int, do: Callable[[], T]) -> T:
        if count != self.fails_at:
            return do()
        if self._is_done:
            do()
        raise StoreError("the network is away", retryable=True)


class AwayStore(CountingStore):
    """Answers nothing while `is_away`; of these names only, when some are given."""

    def __init__(self, store: Store, *, only: str = "") -> None:
        super().__init__(store)
        self.is_away = False
        self._only = only

    def _answer(self, count: int, do: Callable[[], T]) -> T:
        if self.is_away and self._only in self.requests[count - 1][1]:
            raise StoreError("the network is away", retryable=True)
        return do()
