"""Which variable a tensor of a graph of TensorFlow 1 comes from, and which nodes look rows up in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.graph.node_definitions import (
    SEGMENT_LOOKUPS,
    batch_dims,
    has_gather_ids,
    is_zero,
    producer_of,
    waits,
)
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable

REFERENCES = frozenset({"VariableV2", "Variable"})
PASSES_HANDLES = frozenset({"Switch", "Enter", "Identity"})
_ENTRANCES = frozenset({"Switch", "Enter"})
_PASSES_VALUES = PASSES_HANDLES | {"ReadVariableOp"}
_GATHERS = frozenset({"ResourceGather", "GatherV2", "Gather"})


@dataclass(frozen=True, slots=True)
class TableSource:
    """The part that a tensor is, or is the value of, and through which steps it came: (node, output of it).

    A step leads into a branch or loop, or waits for other nodes.
    """

    item: SavedVariable
    part: Part
    steps: tuple[tuple[Any, str], ...] = ()


class TableSources:
    def __init__(self, nodes: Sequence[Any], saved: Sequence[SavedVariable], tables: Collection[str]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._parts = {part.name: TableSource(item, part) for item in saved for part in item.parts}
        self._tables = tables

    def of_node(self, name: str) -> TableSource | None:
        """The part that a node itself is."""
        return self._parts.get(name)

    def of_handle(self, name: str) -> TableSource | None:
        """The variable whose handle a tensor is."""
        source = self._find(name, PASSES_HANDLES)
        is_handle = source is not None and self._nodes[source.part.name].op not in REFERENCES
        return source if is_handle else None

    def of_lookup(self, node: Any) -> TableSource | None:
        """The table of a node that gathers rows of a table, of a part of it, or of a copy of those."""
        if node.op not in _GATHERS | SEGMENT_LOOKUPS or batch_dims(node) or not has_gather_ids(node):
            return None
        if node.op == "GatherV2" and not is_zero(self._axis(node)):
            return None
        source = self._find(node.input[0], _PASSES_VALUES)
        return source if source is not None and source.item.key in self._tables else None

    def waits_of_lookup(self, node: Any) -> list[str]:
        """Under tf.control_dependencies the axis may be what waits, and the look-up only waits for the axis."""
        axis_waits = waits(self._axis(node)) if node.op == "GatherV2" else []
        return self.without_handles([*waits(node), *axis_waits])

    def without_handles(self, inputs: Sequence[str]) -> list[str]:
        """Nothing can wait for a handle of the old graph: its node goes."""
        return [name for name in dict.fromkeys(inputs) if self.of_handle(name) is None]

    def _axis(self, gather: Any) -> Any:
        return self._nodes[producer_of(gather.input[2])]

    def _find(self, name: str, passing: Collection[str]) -> TableSource | None:
        steps: list[tuple[Any, str]] = []
        node = self._nodes[producer_of(name)]
        while node.op in passing:
            if node.op in _ENTRANCES or waits(node):
                steps.insert(0, (node, name.partition(":")[2]))
            name = node.input[0]
            node = self._nodes[producer_of(name)]
        found = self._parts.get(node.name)
        return None if found is None else TableSource(found.item, found.part, tuple(steps))
