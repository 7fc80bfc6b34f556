"""A full on its way into a model that is serving: read in slices, compared, and staged as the rows that differ.

Like a delta, so that the exclusive part copies memory only. Within a byte budget: beyond it nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain import Manifest, Node, VariableSpec
from hotdelta.chain.bundle.file_bytes import aligned
from hotdelta.chain.bundle.row_memory import differing_rows, is_same_bits
from hotdelta.chain.format import names
from hotdelta.signature_calls import array_dtype
from loader.files.commit_files import VerifiedFiles
from loader.files.fed_update import FedUpdate, empty_update
from loader.files.full_reader import FullReader
from loader.model.live_model import LiveModel

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a full differs from the live model: ids and rows of tables, whole other values."""

    ids: Mapping[str, Array]
    rows: Mapping[str, Array]
    values: Mapping[str, Array]

    @property
    def num_rows(self) -> int:
        return sum(len(ids) for ids in self.ids.values())


def compare_full(
    model: LiveModel, files: VerifiedFiles, *, max_bytes: int, slice_bytes: int
) -> Difference | None:
    """None when rows of more than `max_bytes` differ. Raises ApplyError, DamagedError.

    Never touches live variables, and leaves nothing staged.
    """
    with FullReader(files) as full:
        found = _compare(model, full, max_bytes=max_bytes, slice_bytes=slice_bytes)
        full.require_unchanged()
    model.discard()
    return found


def staged_difference(model: LiveModel, manifest: Manifest, difference: Difference) -> FedUpdate:
    """The difference as one update that follows the live state."""
    update = _update(model, manifest)
    for key, ids in difference.ids.items():
        update[key + names.IDS_SUFFIX] = ids
        update[key + names.ROWS_SUFFIX] = difference.rows[key]
    for key, value in difference.values.items():
        update[key + names.VALUE_SUFFIX] = value
    return update


def _compare(model: LiveModel, full: FullReader, *, max_bytes: int, slice_bytes: int) -> Difference | None:
    all_ids: dict[str, Array] = {}
    all_rows: dict[str, Array] = {}
    left = max_bytes
    for spec in model.metadata.schema.tables:
        found = _compare_table(model, full, spec, max_bytes=left, slice_bytes=slice_bytes)
        if found is None:
            return None
        all_ids[spec.key], all_rows[spec.key] = found
        left -= found[1].nbytes
    return Difference(all_ids, all_rows, _compare_values(model, full))


def _compare_table(
    model: LiveModel, full: FullReader, spec: VariableSpec, *, max_bytes: int, slice_bytes: int
) -> tuple[Array, Array] | None:
    found_ids: list[Array] = [np.empty(0, np.int64)]
    found_rows: list[Array] = [np.empty((0, *spec.shape[1:]), array_dtype(spec.dtype))]
    left = max_bytes
    for ids, rows in full.read_slices(spec, slice_bytes):
        update = _update(model, full.manifest)
        update[spec.key + names.IDS_SUFFIX], update[spec.key + names.ROWS_SUFFIX] = ids, rows
        model.stage_rows(update)
        differs = differing_rows(rows, model.preimage()[spec.key + names.ROWS_SUFFIX])
        found_ids.append(ids[differs])
        found_rows.append(rows[differs])
        left -= found_rows[-1].nbytes
        if left < 0:
            return None
    return np.concatenate(found_ids), _joined(found_rows)


def _joined(parts: list[Array]) -> Array:
    """In memory that TensorFlow takes as it is: of what differs there may be much."""
    memory = aligned(sum(part.nbytes for part in parts)).view(parts[0].dtype)
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    return np.concatenate(parts, out=memory.reshape(shape))


def _compare_values(model: LiveModel, full: FullReader) -> dict[str, Array]:
    new = {spec.key: full.read(spec)[np.newaxis] for spec in model.metadata.schema.others}
    update = _update(model, full.manifest)
    update.update({key + names.VALUE_SUFFIX: value for key, value in new.items()})
    model.stage_rows(update)
    live = model.preimage()
    return {
        key: np.array(value)
        for key, value in new.items()
        if not is_same_bits(value, live[key + names.VALUE_SUFFIX])
    }


def _update(model: LiveModel, manifest: Manifest) -> dict[str, Array]:
    return empty_update(model.metadata.schema, node=manifest.node, parent=_live(model), step=manifest.step)


def _live(model: LiveModel) -> Node:
    if model.node is None:
        raise ValueError("the model holds no state of a chain, so there is nothing to compare with")
    return model.node
