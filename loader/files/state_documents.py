"""What is in the small files of a server's own state directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hotdelta.chain import Node, Position
from hotdelta.errors import ManifestError

# What reading a file that is none of ours may raise.
MALFORMED = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    ManifestError,
)


def encode(document: Mapping[str, Any], *, version: int) -> bytes:
    return json.dumps({"format_version": version, **document}, indent=1).encode() + b"\n"


def decode(content: bytes, *, version: int) -> Any:
    """The document. Raises what is in MALFORMED."""
    document = json.loads(content)
    if document["format_version"] != version:
        raise ValueError(f"format_version is {document['format_version']}, not {version}")
    return document


def position_to_json(position: Position | None) -> str | None:
    return None if position is None else str(position)


def position_from_json(text: Any) -> Position | None:
    """Raises ManifestError."""
    return Position.parse(text) if text else None


def nodes_to_json(nodes: Iterable[Node]) -> list[dict[str, str]]:
    ordered = sorted(nodes, key=lambda node: node.position)
    return [{"position": str(node.position), "state_id": node.state_id} for node in ordered]


def nodes_from_json(items: Any) -> tuple[Node, ...]:
    """Raises KeyError, TypeError, ManifestError."""
    return tuple(Node(Position.parse(item["position"]), str(item["state_id"])) for item in items)
