"""What a chain says: every variable at a position, read without TensorFlow and without our resume code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hotdelta.chain import BundleReader, Kind, Manifest, Scanner, directory_of
from hotdelta.chain.bundle.slice_key import is_slice_key

State = dict[str, np.ndarray]


def manifests(directory: Path, kind: Kind | None = None) -> list[Manifest]:
    return [m for m in Scanner(directory).scan().manifests if kind in (None, m.kind)]


def newest_state(directory: Path) -> State:
    """The newest full and the deltas after it."""
    full = manifests(directory, Kind.FULL)[-1]
    return state_of(directory, full, links_after(directory, full))


def links_after(directory: Path, full: Manifest) -> list[Manifest]:
    """The deltas that lead from a full to the newest state, whatever other fulls lie between."""
    deltas = manifests(directory, Kind.DELTA)
    links: list[Manifest] = []
    node = deltas[-1].node if deltas else full.node
    by_node = {delta.node: delta for delta in deltas}
    while node != full.node and node in by_node:
        links.append(by_node[node])
        parent = by_node[node].parent
        assert parent is not None
        node = parent
    return links[::-1] if node == full.node else []


def state_of(directory: Path, full: Manifest, deltas: Sequence[Manifest]) -> State:
    with BundleReader(directory, full.prefix) as reader:
        state = {
            name: reader.read(name)
            for name in reader.entries
            if not is_slice_key(name) and not name.startswith("hotdelta-")
        }
    for delta in deltas:
        with BundleReader(directory_of(directory, Kind.DELTA), delta.prefix) as reader:
            _apply(reader, state)
    return state


def _apply(reader: BundleReader, state: State) -> None:
    tables = [name.removesuffix("-ids") for name in reader.entries if name.endswith("-ids")]
    for key, value in state.items():
        if f"{key}-rows" in reader.entries:
            owner = key if key in tables else max(table for table in tables if key.startswith(f"{table}/"))
            value[reader.read(f"{owner}-ids")] = reader.read(f"{key}-rows")
        elif len(changed := reader.read(f"{key}-value")):
            state[key] = changed[0]
