"""Reads a chain with TensorFlow's own checkpoint reader and nothing of our resume code: what a test compares with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.verification import directory_of
from hotdelta.train.tables.growth import growth_of

Values = dict[str, bytes]


def values_of(variables: Mapping[str, tf.Variable]) -> Values:
    """The bit pattern of every variable, now; of one that grows, of its rows in use."""
    return {key: _value(variable).tobytes() for key, variable in variables.items()}


def _value(variable: tf.Variable) -> Any:
    growth = growth_of(variable)
    if growth is None:
        return np.asarray(variable.read_value())
    rows = np.arange(growth.in_use())
    return np.asarray(tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype))


def replay(run_dir: Path, position: Position, keys: Iterable[str], *, full: Position | None = None) -> Values:
    """Every variable at `position`: a full (the nearest before it, or the given one) and the deltas from there."""
    by_position = {(m.kind, m.position): m for m in Scanner(run_dir).scan().manifests}
    deltas: list[Manifest] = []
    while position != full and (full is not None or (Kind.FULL, position) not in by_position):
        delta = by_position[Kind.DELTA, position]
        assert delta.parent is not None
        deltas.append(delta)
        position = delta.parent.position
    state = _Replay(run_dir, by_position[Kind.FULL, position], tuple(keys))
    for delta in reversed(deltas):
        state.apply(delta)
    return {key: value.tobytes() for key, value in state.values.items()}


class _Replay:
    def __init__(self, run_dir: Path, full: Manifest, keys: tuple[str, ...]) -> None:
        self._run_dir = run_dir
        reader = self._reader(full)
        held = reader.get_variable_to_shape_map()
        self.values: dict[str, Any] = {key: np.array(reader.get_tensor(key)) for key in keys if key in held}
        self._keys = keys

    def _reader(self, manifest: Manifest) -> Any:
        return tf.train.load_checkpoint(str(directory_of(self._run_dir, manifest.kind) / manifest.prefix))

    def apply(self, delta: Manifest) -> None:
        reader = self._reader(delta)
        held = reader.get_variable_to_shape_map()
        tables = [name.removesuffix("-ids") for name in held if name.endswith("-ids")]
        for key in self._keys:
            if f"{key}-rows" in held:
                owner = key if key in tables else _owner(key, tables)
                ids, rows = reader.get_tensor(f"{owner}-ids"), reader.get_tensor(f"{key}-rows")
                if key not in self.values:
                    self.values[key] = np.zeros_like(rows)
                self._write(key, ids, rows)
            elif f"{key}-value" in held:
                value = reader.get_tensor(f"{key}-value")
                if len(value):
                    self.values[key] = value[0]

    def _write(self, key: str, ids: Any, rows: Any) -> None:
        held = self.values[key]
        if len(ids) and ids[-1] >= len(held):
            more = np.zeros((ids[-1] + 1 - len(held), *held.shape[1:]), held.dtype)
            held = self.values[key] = np.concatenate([held, more])
        held[ids] = rows


def _owner(slot: str, tables: list[str]) -> str:
    """As Keras names slots, and as TensorFlow 1 does."""
    return next(table for table in tables if slot.endswith(f"/{table}") or slot.startswith(f"{table}/"))
