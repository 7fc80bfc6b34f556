"""A write that fails in the middle leaves no state: the stamp goes first, and comes back when all is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

pytestmark = [pytest.mark.I4, pytest.mark.optimized]

_WRITES = frozenset({"AssignVariableOp", "ResourceScatterUpdate"})


def body_of(export: Path, signature: str) -> Any:
    """The function that writes, somewhere below the signature."""
    graph = tf.saved_model.load(str(export)).signatures[signature].graph.as_graph_def()
    bodies = [body for body in graph.library.function if any(node.op in _WRITES for node in body.node_def)]
    return max(bodies, key=lambda body: sum(node.op in _WRITES for node in body.node_def))


def ancestors(nodes: dict[str, Any], name: str) -> set[str]:
    found: set[str] = set()
    queue = [name]
    while queue:
        for source in nodes[queue.pop()].input:
            above = source.removeprefix("^").partition(":")[0]
            if above in nodes and above not in found:
                found.add(above)
                queue.append(above)
    return found


def writes_of(nodes: dict[str, Any], handle: str) -> Iterator[str]:
    return (name for name, node in nodes.items() if node.op in _WRITES and node.input[0] == handle)


@pytest.mark.parametrize("signature", ["restore_full", "restore_incremental", "apply_staged"])
def test_every_write_comes_between_two_stamps(export: Path, signature: str) -> None:
    nodes = {node.name: node for node in body_of(export, signature).node_def}
    handles = {node.input[0] for node in nodes.values() if node.op in _WRITES}
    # Only the stamp is written twice: the one that comes first has no write above it.
    twice = [names for handle in handles if len(names := list(writes_of(nodes, handle))) == 2]
    (stamps,) = twice
    first, last = sorted(stamps, key=lambda name: len(ancestors(nodes, name)))
    assert not any(nodes[name].op in _WRITES for name in ancestors(nodes, first))
    tables = [name for name, node in nodes.items() if node.op == "ResourceScatterUpdate"]
    others = [name for name in ancestors(nodes, last) if nodes[name].op in _WRITES and name != first]
    assert set(tables) <= set(others)
    assert others
    assert all(first in ancestors(nodes, name) for name in others)
