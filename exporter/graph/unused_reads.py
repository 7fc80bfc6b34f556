"""Leaves out reads of whole tables whose value nobody takes.

When look-ups gather rows themselves, the read that they looked up in is left over. Often something still waits for it
(a control edge, or the end of the function), and for that alone TensorFlow would run it and copy the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from exporter.graph.node_definitions import copy_of, is_stateful, producer_of, waits
from exporter.graph.signature_graph import EditableBody


def without_unused_reads(nodes: Sequence[Any], reads: set[str], body: EditableBody) -> list[Any]:
    """The nodes without those `reads` whose value reaches no output and no side effect.

    What is computed from such a read goes with it. What waited for a node that goes waits for that node's inputs.
    """
    by_name = {node.name: node for node in nodes}
    unused_reads = reads - _reads_in_use(by_name, reads, body)
    if not unused_reads:
        return list(nodes)
    dropped = {name: by_name[name] for name in _computed_from(unused_reads, nodes)}
    body.forget(dropped)
    return [_without_waits_for(dropped, node, by_name) for node in nodes if node.name not in dropped]


def _reads_in_use(nodes: dict[str, Any], reads: set[str], body: EditableBody) -> set[str]:
    """Found backwards from outputs and side effects, along values only: who waits for a read takes nothing from it."""
    side_effects = [node.name for node in nodes.values() if is_stateful(node) and node.name not in reads]
    queue = [*side_effects, *(name for name, _ in body.returned)]
    values_taken: set[str] = set()
    while queue:
        name = queue.pop()
        # Arguments are not among the nodes of a function.
        if name not in values_taken and name in nodes:
            values_taken.add(name)
            queue.extend(producer_of(each) for each in _values(nodes[name]))
    # DisableCopyOnRead has no value: it is in use when a read of the same handle is.
    handles = {nodes[name].input[0] for name in reads & values_taken}
    return {name for name in reads if nodes[name].input[0] in handles}


def _computed_from(sources: set[str], nodes: Sequence[Any]) -> set[str]:
    """The sources, and what takes their values or values made of those."""
    found = set(sources)
    while True:
        takers = {node.name for node in nodes if any(producer_of(each) in found for each in _values(node))}
        if takers <= found:
            return found
        found |= takers


def _without_waits_for(dropped: dict[str, Any], node: Any, nodes: dict[str, Any]) -> Any:
    if not any(producer_of(each) in dropped for each in node.input):
        return node
    copied = copy_of(node)
    awaited = dict.fromkeys(_awaited_instead(waits(node), dropped))
    del copied.input[:]
    copied.input.extend([*_values(node), *(f"^{name}" for name in awaited if _can_be_awaited(name, nodes))])
    return copied


def _awaited_instead(references: Iterable[str], dropped: dict[str, Any]) -> Iterator[str]:
    """A dropped node ran after all of its inputs, values too. Who waited for it waits for those: no order is lost."""
    for reference in references:
        name = producer_of(reference)
        if name in dropped:
            yield from _awaited_instead(dropped[name].input, dropped)
        else:
            yield name


def _can_be_awaited(name: str, nodes: dict[str, Any]) -> bool:
    """Arguments cannot."""
    return name in nodes and nodes[name].op != "Placeholder"


def _values(node: Any) -> list[str]:
    return [reference for reference in node.input if not reference.startswith("^")]
