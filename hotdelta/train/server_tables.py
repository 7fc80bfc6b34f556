"""Trackers of tables whose rows parameter servers write: the rows of a cut stay on the servers."""

from __future__ import annotations

from hotdelta.train.row_values import Array, Ids, read_slice
from hotdelta.train.server_changed import ServerChangedRows
from hotdelta.train.server_rows import ServerRows, gather_on_servers
from hotdelta.train.sharded import Shard, shards_of
from hotdelta.train.tracking import ComparedTable, TouchedTable
from hotdelta.train.variables import RowVariable, Table


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
