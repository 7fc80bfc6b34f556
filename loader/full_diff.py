"""A full on its way into a model that is serving: read in slices, compared, and staged as the rows that differ.

Within a byte budget the differing rows are staged like a delta, so that the exclusive part copies memory only. Beyond
it they are written slice by slice out of the file, all under one hold of the gate: slower for those who wait,
but still one change, and never a second copy of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain import Manifest, Node, VariableSpec, names
from hotdelta.errors import DamagedError
from loader.bundle_rows import BundleRows
from loader.commit_files import VerifiedFiles
from loader.fed_update import FedUpdate, empty_update
from loader.feeds import numpy_dtype
from loader.live_model import LiveModel

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a full differs from the live model: ids and, within the budget, rows of tables; whole other values."""

    ids: Mapping[str, Array]
    rows: Mapping[str, Array] | None
    values: Mapping[str, Array]

    @property
    def num_rows(self) -> int:
        return sum(len(ids) for ids in self.ids.values())


class FullReader:
    """An open full checkpoint, verified. Nothing of it is copied but slices. One thread at a time."""

    def __init__(self, files: VerifiedFiles, bundle: BundleRows) -> None:
        self._files = files
        self._bundle = bundle

    @property
    def manifest(self) -> Manifest:
        return self._files.manifest

    def read(self, spec: VariableSpec) -> Array:
        """Raises DamagedError when the full holds something else under this key."""
        self._require(spec)
        return self._bundle.read(spec.key)

    def read_rows(self, spec: VariableSpec, start: int, stop: int) -> Array:
        """Raises DamagedError when the full holds something else under this key."""
        self._require(spec)
        return self._bundle.read_rows(spec.key, start, stop)

    def _require(self, spec: VariableSpec) -> None:
        entry = self._bundle.entries.get(spec.key)
        if entry is None or (entry.dtype, entry.shape) != (spec.dtype, spec.shape):
            raise DamagedError(
                f"{self.manifest.prefix} holds {spec.key!r} as {entry}, the model wants {spec.dtype}{spec.shape}",
                path=self._files.prefix,
                position=str(self.manifest.position),
                hint="wait for the next full",
            )


def compare_full(model: LiveModel, full: FullReader, *, max_bytes: int, slice_bytes: int) -> Difference:
    """Never touches live variables, and leaves nothing staged. Raises ApplyError, DamagedError."""
    all_ids: dict[str, Array] = {}
    all_rows: dict[str, Array] = {}
    budget = max_bytes
    for spec in model.metadata.schema.tables:
        ids, rows, budget = _compare_table(model, full, spec, budget=budget, slice_bytes=slice_bytes)
        all_ids[spec.key], all_rows[spec.key] = ids, rows
    values = _compare_values(model, full)
    model.discard()
    return Difference(all_ids, all_rows if budget >= 0 else None, values)


def staged_difference(model: LiveModel, full: FullReader, difference: Difference) -> FedUpdate:
    """The difference as one update that follows the live state. Only within the budget."""
    update = _update(model, full, parent=_live(model))
    for key, ids in difference.ids.items():
        update[key + names.IDS_SUFFIX] = ids
        update[key + names.ROWS_SUFFIX] = (difference.rows or {})[key]
    for key, value in difference.values.items():
        update[key + names.VALUE_SUFFIX] = value
    return update


def write_in_slices(model: LiveModel, full: FullReader, difference: Difference, *, slice_bytes: int) -> None:
    """Call while holding the gate: in between the model is neither the old state nor the new one.

    When it raises, the model must not be used any more.
    """
    parent = _live(model)
    for spec in model.metadata.schema.tables:
        ids = difference.ids[spec.key]
        for start, stop in _slices(spec.shape[0], spec, slice_bytes):
            inside = ids[np.searchsorted(ids, start) : np.searchsorted(ids, stop)]
            if not len(inside):
                continue
            update = _update(model, full, parent=parent)
            update[spec.key + names.IDS_SUFFIX] = np.array(inside)
            update[spec.key + names.ROWS_SUFFIX] = full.read_rows(spec, start, stop)[inside - start]
            model.stage_rows(update)
            model.apply()
            parent = full.manifest.node
    update = _update(model, full, parent=parent)
    update.update({key + names.VALUE_SUFFIX: value for key, value in difference.values.items()})
    model.stage_rows(update)
    model.apply()


def _compare_table(
    model: LiveModel, full: FullReader, spec: VariableSpec, *, budget: int, slice_bytes: int
) -> tuple[Array, Array, int]:
    found_ids: list[Array] = [np.empty(0, np.int64)]
    found_rows: list[Array] = [np.empty((0, *spec.shape[1:]), numpy_dtype(spec.dtype))]
    for start, stop in _slices(spec.shape[0], spec, slice_bytes):
        rows = full.read_rows(spec, start, stop)
        ids = np.arange(start, stop)
        update = _update(model, full, parent=_live(model))
        update[spec.key + names.IDS_SUFFIX], update[spec.key + names.ROWS_SUFFIX] = ids, rows
        model.stage_rows(update)
        differs = _rows_differ(rows, model.preimage()[spec.key + names.ROWS_SUFFIX])
        found_ids.append(ids[differs])
        if budget >= 0:
            found_rows.append(rows[differs])
            budget -= found_rows[-1].nbytes
    if budget < 0:
        found_rows = found_rows[:1]
    return np.concatenate(found_ids), np.concatenate(found_rows), budget


def _compare_values(model: LiveModel, full: FullReader) -> dict[str, Array]:
    new = {spec.key: full.read(spec)[np.newaxis] for spec in model.metadata.schema.others}
    update = _update(model, full, parent=_live(model))
    update.update({key + names.VALUE_SUFFIX: value for key, value in new.items()})
    model.stage_rows(update)
    live = model.preimage()
    return {
        key: np.array(value)
        for key, value in new.items()
        if value.tobytes() != live[key + names.VALUE_SUFFIX].tobytes()
    }


def _update(model: LiveModel, full: FullReader, *, parent: Node) -> dict[str, Array]:
    manifest = full.manifest
    return empty_update(model.metadata.schema, node=manifest.node, parent=parent, step=manifest.step)


def _live(model: LiveModel) -> Node:
    if model.node is None:
        raise ValueError("the model holds no state of a chain, so there is nothing to compare with")
    return model.node


def _slices(rows: int, spec: VariableSpec, slice_bytes: int) -> Iterator[tuple[int, int]]:
    row_bytes = max(1, int(np.prod(spec.shape[1:])) * numpy_dtype(spec.dtype).itemsize)
    length = max(1, slice_bytes // row_bytes)
    for start in range(0, rows, length):
        yield start, min(rows, start + length)


def _rows_differ(left: Array, right: Array) -> npt.NDArray[np.bool_]:
    """By bit pattern: NaN equals itself, and -0.0 is not 0.0."""
    count = len(left)
    if left.nbytes == 0:
        return np.zeros(count, np.bool_)
    word = np.dtype(f"u{left.dtype.itemsize}") if left.dtype.itemsize in (1, 2, 4, 8) else np.dtype(np.uint8)
    bits = [np.ascontiguousarray(array).reshape(count, -1).view(word) for array in (left, right)]
    return np.asarray((bits[0] != bits[1]).any(axis=1))
