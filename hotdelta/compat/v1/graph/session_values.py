"""Reading and writing rows and values of a graph's variables through a Session, on the devices where they live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable
from hotdelta.compat.v1.graph.writers import own_operations
from hotdelta.train.tables.row_values import Array, Ids

CHUNK_BYTES = 16 * 1024 * 1024

Feeds = dict[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _PartOperations:
    part: Part
    ids: tf.Tensor
    gathered: tf.Tensor
    rows: tf.Tensor
    scatter: tf.Operation


class RowOperations:
    """Gathers and scatters rows of one variable; rows are numbered through all of its parts."""

    def __init__(self, saved: SavedVariable) -> None:
        self.saved = saved
        self._parts = [_part_operations(saved, part) for part in saved.parts]

    def gather(self, ids: Ids) -> tuple[list[tf.Tensor], Feeds]:
        """What to fetch, and with which feeds, for the rows `ids` (ascending), part after part."""
        fetches, feeds = [], {}
        for operations, local in self._split(ids):
            fetches.append(operations.gathered)
            feeds[operations.ids] = local
        return fetches, feeds

    def read(self, session: Any, ids: Ids) -> Array:
        fetches, feeds = self.gather(ids)
        return join(session.run(fetches, feeds), self.saved)

    def read_chunks(self, session: Any) -> Iterator[tuple[int, Array]]:
        """Every row, in pieces that a process can hold beside the table."""
        for first, end in row_ranges(self.saved.shape[0], chunk_rows(self.saved)):
            yield first, self.read(session, np.arange(first, end, dtype=np.int64))

    def write(self, session: Any, ids: Ids, rows: Array) -> None:
        """`ids` are ascending. In pieces: what is fed has to fit into one message."""
        for first, end in row_ranges(len(ids), chunk_rows(self.saved)):
            piece = slice(first, end)
            feeds: Feeds = {}
            written = []
            for operations, local in self._split(ids[piece]):
                start = int(np.searchsorted(ids[piece], operations.part.first_row))
                feeds[operations.ids] = local
                feeds[operations.rows] = rows[piece][start : start + len(local)]
                written.append(operations.scatter)
            session.run(written, feeds)

    def write_whole(self, session: Any, values: Array) -> None:
        self.write(session, np.arange(len(values), dtype=np.int64), values)

    def _split(self, ids: Ids) -> Iterator[tuple[_PartOperations, npt.NDArray[np.int64]]]:
        for operations in self._parts:
            first = operations.part.first_row
            start, stop = np.searchsorted(ids, [first, first + operations.part.rows])
            yield operations, ids[start:stop] - first


class ValueOperations:
    """Reads and assigns whole variables, several at a time."""

    def __init__(self, variables: Sequence[SavedVariable]) -> None:
        self._variables = tuple(variables)
        self._reads: dict[str, list[tf.Tensor]] = {}
        self._assigns: dict[str, list[tuple[Part, tf.Tensor, tf.Operation]]] = {}
        for saved in variables:
            self._reads[saved.key] = [_read(part) for part in saved.parts]
            self._assigns[saved.key] = [_assign(saved, part) for part in saved.parts]

    @property
    def fetches(self) -> Mapping[str, list[tf.Tensor]]:
        return self._reads

    def join(self, fetched: Mapping[str, list[Array]]) -> dict[str, Array]:
        return {saved.key: join(fetched[saved.key], saved) for saved in self._variables}

    def write(self, session: Any, key: str, value: Array) -> None:
        for part, fed, assign in self._assigns[key]:
            rows = value[part.first_row : part.first_row + part.rows] if value.ndim else value
            session.run(assign, {fed: rows})


def chunk_rows(saved: SavedVariable) -> int:
    """How many rows of it are moved at a time."""
    return rows_within(CHUNK_BYTES, tensor_bytes(saved.dtype.name, saved.shape[1:]))


def join(parts: Sequence[Array], saved: SavedVariable) -> Array:
    if len(parts) == 1:
        return np.asarray(parts[0])
    return np.concatenate(parts) if parts else np.empty((0, *saved.shape[1:]), saved.array_dtype)


def _part_operations(saved: SavedVariable, part: Part) -> _PartOperations:
    with tf.device(part.variable.device):
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        rows = tf.compat.v1.placeholder(saved.dtype, [None, *saved.shape[1:]])
        if part.is_resource:
            handle = part.variable.handle
            scatter = tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=ids, updates=rows)
        else:
            scatter = tf.raw_ops.ScatterUpdate(ref=part.reference, indices=ids, updates=rows).op
        return _PartOperations(part, ids, gather_rows(saved, part, ids), rows, scatter)


def gather_rows(saved: SavedVariable, part: Part, ids: tf.Tensor) -> tf.Tensor:
    """Rows of one part, by their number in it."""
    with own_operations():
        if part.is_resource:
            return tf.raw_ops.ResourceGather(resource=part.variable.handle, indices=ids, dtype=saved.dtype)
        return tf.raw_ops.GatherV2(params=part.reference, indices=ids, axis=0)


def rows_in_use(saved: SavedVariable, part: Part) -> tf.Tensor | None:
    """All of a part that grows; None: it does not, and all of it is its value."""
    if saved.growth is None:
        return None
    return gather_rows(saved, part, tf.range(saved.growth.rows_in_use()))


def _read(part: Part) -> tf.Tensor:
    with tf.device(part.variable.device):
        return part.variable.read_value()


def _assign(saved: SavedVariable, part: Part) -> tuple[Part, tf.Tensor, tf.Operation]:
    with tf.device(part.variable.device):
        fed = tf.compat.v1.placeholder(saved.dtype, part.variable.shape)
        return part, fed, part.variable.assign(fed).op
