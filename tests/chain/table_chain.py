"""A chain of one table, a slot of it and a bias, written without TensorFlow, and what a reader has to find in it.

The table may grow: then it reserves more rows than it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lengthened_chain import CarelessDisk
from hotdelta.chain import (
    BundleWriter,
    HighestStep,
    Kind,
    Manifest,
    Node,
    Position,
    TableRecord,
    TensorLayout,
    Tracking,
    commit,
    directory_of,
    encode_identity,
    new_state_id,
)
from hotdelta.chain.format import names

TABLE, SLOT, BIAS = "table", "table/momentum", "bias"
COLUMNS = 3
SCHEMA = "5" * 64

Array = npt.NDArray[Any]


class TableChain:
    """`values` are those of the newest state. The slot shares the ids of its table, and lies in a file of its own."""

    def __init__(
        self,
        run_dir: Path,
        *,
        rows: int = 40,
        reserved_rows: int | None = None,
        dtype: str = "float32",
        schema: str = SCHEMA,
    ) -> None:
        self.run_dir = run_dir
        self.schema = schema
        self._dtype = dtype
        self._reserved_rows = reserved_rows
        self._random = np.random.default_rng(5)
        self._disk = CarelessDisk()
        self._seq = 0
        self.manifests: list[Manifest] = []
        (run_dir / names.DELTA_DIRECTORY).mkdir(parents=True, exist_ok=True)
        self.values = {key: self.random_rows(rows) for key in (TABLE, SLOT)}
        self.values[BIAS] = np.zeros(2, np.float32)
        self.full()

    def random_rows(self, count: int) -> Array:
        bits = "uint16" if self._dtype == "bfloat16" else self._dtype
        return (self._random.random((count, COLUMNS)) * 1000).astype(bits)

    def full(self) -> Manifest:
        """Without a closing delta: of a first full there is none, and later ones come beside one."""
        if self.manifests:
            raise ValueError("use close_with_full")
        return self._commit(Kind.FULL, self._next(), None, self.values)

    def close_with_full(self, ids: Iterable[int], *, new: int = 0) -> Manifest:
        """A delta, and a full of the same position, whose `new` rows came while it was written."""
        delta = self.delta(ids, new=new)
        return self._commit(Kind.FULL, delta.node, delta.parent, self.values, appended=new)

    def delta(self, ids: Iterable[int], *, new: int = 0, bias: float | None = None) -> Manifest:
        """`new`: so many rows come into use."""
        rows_in_use = len(self.values[TABLE])
        where = np.array([*sorted(ids), *range(rows_in_use, rows_in_use + new)], np.int64)
        for key in (TABLE, SLOT):
            self.values[key] = np.concatenate([self.values[key], self.random_rows(new)])
        tensors = {TABLE + names.IDS_SUFFIX: where}
        for key in (TABLE, SLOT):
            rows = tensors[key + names.ROWS_SUFFIX] = self.random_rows(len(where))
            self.values[key][where] = rows
        if bias is not None:
            self.values[BIAS] = np.full(2, bias, np.float32)
        tensors[BIAS + names.VALUE_SUFFIX] = self.values[BIAS][None][: bias is not None]
        return self.link(tensors)

    def link(self, tensors: dict[str, Array]) -> Manifest:
        """A delta that holds these."""
        return self._commit(Kind.DELTA, self._next(), self.manifests[-1].node, tensors)

    def _next(self) -> Node:
        self._seq += 1
        return Node(Position(1, self._seq), new_state_id())

    def _commit(
        self, kind: Kind, node: Node, parent: Node | None, tensors: dict[str, Array], *, appended: int = 0
    ) -> Manifest:
        seq = node.position.seq
        directory = directory_of(self.run_dir, kind)
        prefix = f"{names.FULL_STEM if kind is Kind.FULL else names.DELTA_STEM}{seq}"
        everything = {
            names.IDENTITY_TENSOR: np.array(encode_identity(node, parent), np.int64),
            names.STEP_TENSOR: np.array(seq, np.int64),
            **tensors,
        }
        later = {key: everything[key][-appended:] for key in (TABLE, SLOT) if appended}
        everything.update({key: everything[key][:-appended] for key in later})
        layout = [
            TensorLayout(name, self._dtype_of(name, value), value.shape, int(name.startswith(SLOT)))
            for name, value in everything.items()
        ]
        roles = [names.ROLE_SERVING, names.ROLE_TRAINING]
        writer = BundleWriter(directory, prefix, layout, shard_roles=roles, disk=self._disk)
        for name, value in everything.items():
            writer.write(name, value)
        for name, value in later.items():
            writer.append_rows(name, value)
        prepared = writer.finish()
        manifest = Manifest(
            kind=kind,
            position=node.position,
            state_id=node.state_id,
            parent=parent,
            base=None,
            prefix=prefix,
            step=seq,
            created_at=0.0,
            schema=self.schema,
            tables={TABLE: self._record()},
            files=prepared.files,
            highest_step=HighestStep(seq, seq),
        )
        commit(prepared, manifest, disk=self._disk)
        self.manifests.append(manifest)
        return manifest

    def _record(self) -> TableRecord:
        rows = len(self.values[TABLE])
        is_growing = self._reserved_rows is not None
        return TableRecord(
            (self._reserved_rows or rows, COLUMNS),
            self._dtype,
            Tracking.TOUCHED,
            0,
            rows_in_use=rows if is_growing else None,
        )

    def _dtype_of(self, name: str, value: Array) -> str:
        is_rows = name in (TABLE, SLOT) or name.endswith(names.ROWS_SUFFIX)
        return self._dtype if is_rows else value.dtype.name

    def path(self, manifest: Manifest, role: str) -> Path:
        name = next(file.name for file in manifest.files if file.role == role)
        return directory_of(self.run_dir, manifest.kind) / name
