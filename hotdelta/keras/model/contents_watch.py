"""Whether some lists and dictionaries still hold the same objects: cheap enough to ask before every save."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class ContentsWatch:
    """Tells that a search need not be made again, as long as nothing changed in what it searched.

    `find`: the lists, tuples and dictionaries that are to be watched.
    """

    def __init__(self, find: Callable[[], Iterable[Any]]) -> None:
        self._find = find
        self._containers: list[Any] = []
        self._items: list[Any] | None = None

    @property
    def is_same(self) -> bool:
        """As when it was noted; False before the first note."""
        return self._items is not None and are_same(_items(self._containers), self._items)

    def note(self) -> None:
        """What is there now is known."""
        self._containers = list(self._find())
        self._items = _items(self._containers)


def are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """The very same objects, in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _items(containers: Iterable[Any]) -> list[Any]:
    items: list[Any] = []
    for container in containers:
        items.extend(container)
        if isinstance(container, dict):
            items.extend(container.values())
    return items
