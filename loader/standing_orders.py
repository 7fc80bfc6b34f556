"""What an operator has ordered: how far the server may go, which states it was taken back from, which it may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotdelta.chain import Node, Position


@dataclass(slots=True)
class Orders:
    """`pin`: exactly this position is served. `bad`: states that a rollback undid, until resumed.

    `released`: states that are served whatever their values are. Belongs to the updater thread.
    """

    pin: Position | None = None
    bad: frozenset[Node] = field(default_factory=frozenset)
    released: frozenset[Node] = field(default_factory=frozenset)
    is_pin_a_setting: bool = field(default=False, compare=False)
    """Whether the pin is the one that the server was started with, and nobody has ordered another."""

    @property
    def pinned_by(self) -> str:
        return "--pin" if self.is_pin_a_setting else "an operator"

    def is_barred(self, node: Node) -> bool:
        """Whether this state must not be served."""
        return node in self.bad or (self.pin is not None and node.position != self.pin)

    def hold(self, position: Position, *, bad: frozenset[Node]) -> None:
        self.pin, self.bad, self.is_pin_a_setting = position, bad, False

    def resume(self) -> None:
        self.pin, self.bad, self.is_pin_a_setting = None, frozenset(), False
