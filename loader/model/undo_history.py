"""What recent updates overwrote, newest last, within a byte budget."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hotdelta.chain import Node
from loader.files.fed_update import FedUpdate, count_bytes
from loader.model.served import Origin

# Of tiny updates a budget of bytes would hold millions, which cost more than their bytes, and time with every plan.
MAX_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class UndoEntry:
    """Staged and applied, `preimage` leads back to `node`, which had this step and came from `origin`."""

    node: Node
    step: int
    origin: Origin
    preimage: FedUpdate

    @property
    def bytes(self) -> int:
        return count_bytes(self.preimage)


class UndoHistory:
    """A stack of pre-images; when it grows over `max_bytes` or MAX_ENTRIES the oldest go. One thread at a time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: deque[UndoEntry] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The states that can be gone back to, oldest first."""
        return tuple(entry.node for entry in self._entries)

    def before(self, live: Node) -> list[Node]:
        """The states that came before this one, newest first: not those that an order led back from."""
        earlier = [live]
        for entry in reversed(self._entries):
            if entry.node.position >= earlier[-1].position:
                break
            earlier.append(entry.node)
        return earlier[1:]

    def push(self, entry: UndoEntry) -> None:
        self._entries.append(entry)
        self.bytes += entry.bytes
        while self.bytes > self._max_bytes or len(self._entries) > MAX_ENTRIES:
            self.bytes -= self._entries.popleft().bytes

    def back_to(self, node: Node) -> list[UndoEntry]:
        """What to apply, in this order, to be at `node`. Nothing is removed before `drop`."""
        entries: list[UndoEntry] = []
        for entry in reversed(self._entries):
            entries.append(entry)
            if entry.node == node:
                return entries
        raise LookupError(f"{node} is not in the undo history")

    def drop(self, entries: list[UndoEntry]) -> None:
        for _ in entries:
            self.bytes -= self._entries.pop().bytes

    def pop(self) -> UndoEntry | None:
        """The newest entry, removed; None when there is none."""
        if not self._entries:
            return None
        entry = self._entries.pop()
        self.bytes -= entry.bytes
        return entry

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0
