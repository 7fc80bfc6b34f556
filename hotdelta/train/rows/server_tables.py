"""Trackers of tables whose rows parameter servers write: the rows of a cut stay on the servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.model.variables import RowVariable, Table
from hotdelta.train.rows.tracking import ComparedTable, TouchedTable
from hotdelta.train.servers.fetching import fetch, here
from hotdelta.train.tables.row_values import Array, Ids, read_slice
from hotdelta.train.tables.server_rows import ServerRows, gather_on_servers, wait_for
from hotdelta.train.tables.sharded import MESSAGE_BYTES, Shard, asking_servers, shards_of

_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32}


class ServerChangedRows:
    """As `ChangedRows`, for a variable whose shards are on servers. Owned by the training thread.

    `remembered` has a shard for each shard of the variable, on the same server. A full is written from it, because
    every row that changes in it meanwhile is in a later delta.
    """

    def __init__(self, variable: Any, *, is_saved: bool) -> None:
        """`is_saved`: the present value is on disk already; otherwise every row is due."""
        self._variable = variable
        self.remembered = tuple(_copy(shard) for shard in shards_of(variable))
        self._due = np.full(int(variable.shape[0]), not is_saved)

    def take(self) -> tuple[Ids, ServerRows]:
        """The rows that changed since the last take, with what was given back; they count as saved from here on.

        A row that a worker writes after the comparison is found by the next one, or is gathered as it is then.
        """
        for live, remembered in zip(shards_of(self._variable), self.remembered, strict=True):
            self._due[_differing(live, remembered)] = True
        ids: Ids = np.flatnonzero(self._due)
        rows = gather_on_servers(self._variable, ids)
        self._remember(ids, rows)
        self._due[:] = False
        return ids, rows

    def give_back(self, ids: Ids) -> None:
        self._due[ids] = True

    def mark_all(self) -> None:
        self._due[:] = True

    def _remember(self, ids: Ids, rows: ServerRows) -> None:
        for part in rows.parts:
            places = ids[part.first : part.first + part.count]
            shard = next(found for found in reversed(self.remembered) if found.first <= places[0])
            with asking_servers(part.server), tf.device(part.server):
                tf.raw_ops.ResourceScatterUpdate(
                    resource=shard.variable.handle, indices=here(places - shard.first), updates=part.tensor
                )


def _copy(shard: Shard) -> Shard:
    with asking_servers(shard.variable.device), tf.device(shard.variable.device):
        value = shard.variable.read_value()
        copy = ResourceVariable(value, trainable=False, name="hotdelta_remembered")
    wait_for([value])
    return Shard(shard.first, copy)


def _differing(live: Shard, remembered: Shard) -> Ids:
    """Ids of rows that are not, bit for bit, as they are remembered."""
    found = [np.empty(0, np.int64)]
    for first, count in _chunks(live):
        with asking_servers(live.variable.device), tf.device(live.variable.device):
            begin, end, one = (here(number, tf.int64) for number in (first, first + count, 1))
            ids = tf.range(begin, end, one)
            is_other = tf.not_equal(_bits(live, ids), _bits(remembered, ids))
            found.append(fetch(tf.boolean_mask(ids, tf.reduce_any(is_other, axis=1))))
    return np.concatenate(found) + live.first


def _bits(shard: Shard, ids: tf.Tensor) -> tf.Tensor:
    variable = shard.variable
    rows = tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=variable.dtype)
    return tf.reshape(tf.bitcast(rows, _BITS.get(variable.dtype.size, tf.int64)), [tf.size(ids), -1])


def _chunks(shard: Shard) -> Iterator[tuple[int, int]]:
    row_bytes = max(1, shard.variable.shape[1:].num_elements() * shard.variable.dtype.size)
    chunk = max(1, MESSAGE_BYTES // row_bytes)
    for first in range(0, shard.rows, chunk):
        yield first, min(chunk, shard.rows - first)


class ServerTouchedTable(TouchedTable):
    """`TouchedTable` of which the coordinator learns the ids only."""

    def _gather(self, item: RowVariable, ids: Ids) -> ServerRows:
        return gather_on_servers(item.variable, ids)

    def shards_on_servers(self, variable: RowVariable, /) -> tuple[Shard, ...]:
        return shards_of(variable.variable)


class ServerChangedTable(ComparedTable[ServerChangedRows]):
    """The remembered copies are on the servers, and are compared there."""

    def __init__(self, table: Table, *, unsaved: frozenset[str] = frozenset()) -> None:
        super().__init__(
            table,
            {
                item.key: ServerChangedRows(item.variable, is_saved=item.key not in unsaved)
                for item in table.row_variables
            },
        )

    def read_slice(self, variable: RowVariable, first: int, count: int) -> Array:
        return read_slice(variable.variable, first, count)

    def shards_on_servers(self, variable: RowVariable, /) -> tuple[Shard, ...]:
        """The remembered rows: a live one that changed and changed back meanwhile would be in no cut."""
        return self._rows[variable.key].remembered
