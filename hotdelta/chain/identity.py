"""The identity of a saved state, as a graph can hold it: eight 64-bit integers.

Run, seq and the two halves of the state id of the state itself, then the same of its parent (all zero without
one).
"""

from __future__ import annotations

from collections.abc import Sequence

from hotdelta.chain.position import Node, Position
from hotdelta.errors import ManifestError

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
