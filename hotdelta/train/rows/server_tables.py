"""Trackers of tables whose rows parameter servers write: the rows of a cut stay on the servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.model.variables import RowVariable, Table
from hotdelta.train.rows.tracking import ComparedTable, TouchedTable
from hotdelta.train.servers.fetching import fetch, here
from hotdelta.train.tables.row_values import Array, Ids, is_other_row, read_slice
from hotdelta.train.tables.server_rows import ServerRows, gather_on_servers, wait_for
from hotdelta.train.tables.sharded import MESSAGE_BYTES, Shard, asking_servers, shards_of


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
    count = rows_within(MESSAGE_BYTES, tensor_bytes(live.variable.dtype.name, live.variable.shape[1:]))
    for first, last in row_ranges(live.rows, count):
        with asking_servers(live.variable.device), tf.device(live.variable.device):
            begin, end, one = (here(number, tf.int64) for number in (first, last, 1))
            ids = tf.range(begin, end, one)
            is_other = is_other_row(_gather(live, ids), _gather(remembered, ids))
            found.append(fetch(tf.boolean_mask(ids, is_other)))
    return np.concatenate(found) + live.first


def _gather(shard: Shard, ids: tf.Tensor) -> tf.Tensor:
    variable = shard.variable
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=variable.dtype)


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
