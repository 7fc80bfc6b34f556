"""A chain of a table with an open vocabulary and a bias, written without TensorFlow, as a trainer would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lengthened_chain import CarelessDisk
from hotdelta.chain import (
    BundleWriter,
    HighestStep,
    KeyTable,
    Kind,
    Manifest,
    Node,
    Position,
    Schema,
    TableRecord,
    TensorLayout,
    Tracking,
    VariableSpec,
    commit,
    directory_of,
    encode_identity,
    new_state_id,
)
from hotdelta.chain.bundle.row_memory import differing_rows
from hotdelta.chain.format import names
from hotdelta.chain.format.key_index import BucketsFullError, find, mask_of, place_keys

ROWS, INDEX, COUNTS, BIAS = "users/rows", "users/index", "users/counts", "bias"
COLUMNS = 4
CAPACITY, MAX_BUCKETS = 2000, 500
SCHEMA = Schema(
    (
        VariableSpec(ROWS, (CAPACITY, COLUMNS), "float32", True),
        VariableSpec(INDEX, (MAX_BUCKETS, 16), "int64", True),
        VariableSpec(COUNTS, (3,), "int64", False),
        VariableSpec(BIAS, (2,), "float32", False),
    ),
    {},
    {},
    (KeyTable(ROWS, INDEX, COUNTS),),
)

Array = npt.NDArray[Any]


@dataclass
class TrainedTable:
    """What a trainer holds: values with as many rows as are in use, and the keys in the order of their rows."""

    keys: list[int] = field(default_factory=list)
    values: dict[str, Array] = field(
        default_factory=lambda: {
            ROWS: np.zeros((1, COLUMNS), np.float32),
            INDEX: np.zeros((1, 16), np.int64),
            COUNTS: np.array([1, 1, 0]),
            BIAS: np.zeros(2, np.float32),
        }
    )

    def train(self, keys: Iterable[int], value: float) -> dict[str, Array]:
        """Gives the rows of these keys a value; new ones come into use. Returns the tensors of a delta."""
        before = dict(self.values)
        unknown = sorted(set(keys) - set(self.keys))
        self.keys += unknown
        held = np.array(self.keys, np.int64)
        rows = np.concatenate([self.values[ROWS], np.zeros((len(unknown), COLUMNS), np.float32)])
        index = before[INDEX] if not unknown else _place(held, len(before[INDEX]))
        rows[find(index, np.array(sorted(set(keys)), np.int64))] = value
        self.values = {
            ROWS: rows,
            INDEX: index,
            COUNTS: np.array([len(rows), len(index), mask_of(len(index))]),
            BIAS: np.full(2, value, np.float32),
        }
        return _difference(before, self.values)


def _place(keys: Array, num_buckets: int) -> Array:
    while True:
        try:
            return place_keys(keys, np.arange(1, len(keys) + 1), num_buckets)
        except BucketsFullError:
            num_buckets += 1


def _difference(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for key in (ROWS, INDEX):
        grown_from = len(before[key])
        is_changed = np.ones(len(after[key]), np.bool_)
        is_changed[:grown_from] = differing_rows(before[key], after[key][:grown_from])
        ids = np.flatnonzero(is_changed)
        tensors[key + names.IDS_SUFFIX], tensors[key + names.ROWS_SUFFIX] = ids, after[key][ids]
    for key in (COUNTS, BIAS):
        is_same = (before[key] == after[key]).all()
        tensors[key + names.VALUE_SUFFIX] = after[key][None][: not is_same]
    return tensors


class KeyTableChain:
    """Commits what a table is trained with. `manifests` in the order of their commits."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.table = TrainedTable()
        self.manifests: list[Manifest] = []
        (run_dir / names.DELTA_DIRECTORY).mkdir(parents=True, exist_ok=True)
        self.full()

    def full(self, changed: Mapping[str, Array] | None = None, *, appended: int = 0) -> Manifest:
        """Starts a chain anew; `changed` replaces values by what no trainer would write.

        `appended`: so many rows of both tables came into use while it was written.
        """
        node = Node(Position(1, len(self.manifests) + 1), new_state_id())
        values = {**self.table.values, **(changed or {})}
        later = {key: values[key][-appended:] for key in (ROWS, INDEX) if appended}
        values.update({key: values[key][:-appended] for key in later})
        return self.commit(Kind.FULL, node, None, values, later)

    def delta(self, keys: Iterable[int], value: float) -> Manifest:
        return self.link(self.table.train(keys, value))

    def link(self, tensors: Mapping[str, Array]) -> Manifest:
        """A delta that holds these."""
        node = Node(Position(1, len(self.manifests) + 1), new_state_id())
        return self.commit(Kind.DELTA, node, self.manifests[-1].node, tensors)

    def commit(
        self,
        kind: Kind,
        node: Node,
        parent: Node | None,
        tensors: Mapping[str, Array],
        later: Mapping[str, Array] | None = None,
    ) -> Manifest:
        seq = node.position.seq
        stem = names.FULL_STEM if kind is Kind.FULL else names.DELTA_STEM
        everything = {
            names.IDENTITY_TENSOR: np.array(encode_identity(node, parent), np.int64),
            names.STEP_TENSOR: np.array(seq, np.int64),
            **tensors,
        }
        layout = [TensorLayout(name, value.dtype.name, value.shape, 0) for name, value in everything.items()]
        writer = BundleWriter(
            directory_of(self.run_dir, kind),
            f"{stem}{seq}",
            layout,
            shard_roles=[names.ROLE_SERVING],
            disk=CarelessDisk(),
        )
        for name, value in everything.items():
            writer.write(name, value)
        for name, value in (later or {}).items():
            writer.append_rows(name, value)
        manifest = Manifest(
            kind=kind,
            position=node.position,
            state_id=node.state_id,
            parent=parent,
            base=None,
            prefix=f"{stem}{seq}",
            step=seq,
            created_at=0.0,
            schema=SCHEMA.digest,
            tables=records(self.table.values, tensors),
            files=(),
            highest_step=HighestStep(seq, seq),
        )
        prepared = writer.finish()
        manifest = replace(manifest, files=prepared.files)
        commit(prepared, manifest, disk=CarelessDisk())
        self.manifests.append(manifest)
        return manifest


def records(values: Mapping[str, Array], tensors: Mapping[str, Array]) -> dict[str, TableRecord]:
    """What a manifest says of the tables."""
    return {
        spec.key: TableRecord(
            spec.shape,
            spec.dtype,
            Tracking.TOUCHED,
            len(tensors.get(spec.key + names.IDS_SUFFIX, ())),
            rows_in_use=len(values[spec.key]),
        )
        for spec in SCHEMA.tables
    }
