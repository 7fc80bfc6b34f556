"""How many connections each front-end has, in memory that all of them share: the next one is for who has fewest."""

from __future__ import annotations

import mmap
from typing import IO, Self

_BYTES = 4
# Of one that takes no connections.
_ABSENT = 2**32 - 1


class ConnectionShares:
    """One number for each front-end, which it alone writes while it runs. Without locks: what is old does little harm.

    Whoever is woken first by a new connection would take it, and with it nearly all of them.
    """

    def __init__(self, descriptor: int, count: int) -> None:
        self._shared = memoryview(mmap.mmap(descriptor, count * _BYTES)).cast("I")

    @classmethod
    def make(cls, file: IO[bytes], count: int) -> Self:
        """In an empty file, whose descriptor is for those that share it."""
        file.truncate(count * _BYTES)
        shares = cls(file.fileno(), count)
        for number in range(count):
            shares.leave(number)
        return shares

    def tell(self, number: int, connections: int) -> None:
        self._shared[number] = connections

    def add(self, number: int) -> None:
        """One more, until all are told again."""
        self._shared[number] += 1

    def leave(self, number: int) -> None:
        """It takes no connections now."""
        self._shared[number] = _ABSENT

    def has_more_than_others(self, number: int) -> bool:
        """Whether somebody who takes connections has fewer."""
        return self._shared[number] > min(self._shared)
