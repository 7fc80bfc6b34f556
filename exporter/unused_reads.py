"""Leaves out reads of whole tables whose value goes nowhere: TensorFlow runs them when something waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from exporter.node_definitions import copy_of, is_stateful
from exporter.signature_graph import Body, producer_of


def without_unused_reads(nodes: Sequence[Any], reads: set[str], body: Body) -> list[Any]:
    """The nodes without those `reads` that no output and no side effect depends on, and what was computed from them.

    What waited for one of them waits for what it had waited for.
    """
    by_name = {node.name: node for node in nodes}
    needed = _needed(by_name, reads, body)
    read = _computed_from(nodes, {name for name in reads if name not in needed})
    dropped = {name: by_name[name] for name in read if name not in needed and name in by_name}
    if not dropped:
        return list(nodes)
    body.forget(dropped)
    return [_without_waiting(node, dropped, by_name) for node in nodes if node.name not in dropped]


def _needed(nodes: dict[str, Any], reads: set[str], body: Body) -> set[str]:
    roots = [node.name for node in nodes.values() if is_stateful(node) and node.name not in reads]
    queue = [*roots, *(name for name, _ in body.returned)]
    needed: set[str] = set()
    while queue:
        name = queue.pop()
        if name in needed or name not in nodes:
            continue
        needed.add(name)
        queue.extend(producer_of(each) for each in _data(nodes[name]))
    # DisableCopyOnRead goes with the reads of the same handle.
    read_handles = {nodes[name].input[0] for name in reads & needed}
    return needed | {name for name in reads if name in nodes and nodes[name].input[0] in read_handles}


def _computed_from(nodes: Sequence[Any], sources: set[str]) -> set[str]:
    found = set(sources)
    while True:
        more = {
            node.name for node in nodes if any(producer_of(each) in found for each in _data(node))
        } - found
        if not more:
            return found
        found |= more


def _without_waiting(node: Any, dropped: dict[str, Any], nodes: dict[str, Any]) -> Any:
    if not any(producer_of(each) in dropped for each in node.input):
        return node
    copied = copy_of(node)
    waits = dict.fromkeys(_awaited((each for each in node.input if each.startswith("^")), dropped))
    del copied.input[:]
    copied.input.extend([*_data(node), *(f"^{name}" for name in waits if _can_be_awaited(name, nodes))])
    return copied


def _awaited(references: Iterable[str], dropped: dict[str, Any]) -> Iterator[str]:
    for reference in references:
        name = producer_of(reference)
        if name in dropped:
            yield from _awaited(dropped[name].input, dropped)
        else:
            yield name


def _can_be_awaited(name: str, nodes: dict[str, Any]) -> bool:
    """Arguments cannot."""
    return name in nodes and nodes[name].op != "Placeholder"


def _data(node: Any) -> list[str]:
    return [reference for reference in node.input if not reference.startswith("^")]
