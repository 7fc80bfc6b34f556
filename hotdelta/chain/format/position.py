"""Where in the history of a model something is: run.seq, a small comparable value with a text form.

Also the identity of a saved state as a graph can hold it: eight 64-bit integers.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from hotdelta.errors import ManifestError

# Longer than any that is one: Python refuses to make a number of thousands of digits, in words about itself.
_MAX_CHARACTERS = 64


# Of runs, and of commits in a run.
MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The `seq`-th commit of the `run`-th start of a trainer; ordered by run, then by seq."""

    run: int
    seq: int

    def __post_init__(self) -> None:
        if not (0 < self.run <= MAX_NUMBER and 0 < self.seq <= MAX_NUMBER):
            raise ValueError(f"position {self.run}.{self.seq} is out of range: run and seq start at 1")

    def __str__(self) -> str:
        return f"{self.run}.{self.seq}"

    def next(self) -> Position:
        return Position(self.run, self.seq + 1)

    @classmethod
    def parse(cls, text: str) -> Position:
        run, dot, seq = text.partition(".")
        is_short = len(text) <= _MAX_CHARACTERS
        if not (is_short and dot and run.isascii() and run.isdigit() and seq.isascii() and seq.isdigit()):
            shown = repr(text) if is_short else f"{text[:_MAX_CHARACTERS]!r}..."
            raise ManifestError(f"{shown} is not a position", hint="write run.seq, for example 3.17")
        try:
            return cls(int(run), int(seq))
        except ValueError as error:
            raise ManifestError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Node:
    """A position together with the identity of the state that was saved there.

    Two directories may both hold a 3.17; only one state has this state id.
    """

    position: Position
    state_id: str

    def __str__(self) -> str:
        return str(self.position)


STATE_ID_HEX_DIGITS = 32


def new_state_id() -> str:
    """A fresh 128-bit identity for one saved state."""
    return secrets.token_hex(STATE_ID_HEX_DIGITS // 2)


IDENTITY_LENGTH = 8


def encode_identity(node: Node, parent: Node | None) -> list[int]:
    return _encode_node(node) + (_encode_node(parent) if parent else [0, 0, 0, 0])


def decode_identity(values: Sequence[int]) -> tuple[Node, Node | None]:
    """Raises ManifestError when these are not the integers of an identity."""
    try:
        return _decode_node(values[:4]), _decode_node(values[4:]) if values[4] else None
    except (ValueError, IndexError) as error:
        raise ManifestError(f"{list(values)} is not the identity of a state: {error}") from error


def _encode_node(node: Node) -> list[int]:
    halves = (int(node.state_id[:16], 16), int(node.state_id[16:], 16))
    return [node.position.run, node.position.seq, *(_to_signed(half) for half in halves)]


def _decode_node(values: Sequence[int]) -> Node:
    run, seq, high, low = (int(value) for value in values)
    return Node(Position(run, seq), f"{high % 2**64:016x}{low % 2**64:016x}")


def _to_signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
