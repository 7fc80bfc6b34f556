"""What a graph is made of, as the chain sees it: tables with their slots, other variables, and the serving schema.

Only looks at the graph, never adds to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hotdelta.chain.format import names
from hotdelta.chain.format.schema import KeyTable, Schema, parts_rule
from hotdelta.compat.v1.graph.lookup_strategy import DIV, find_strategy
from hotdelta.compat.v1.graph.saved_variables import SavedVariable
from hotdelta.compat.v1.graph.served_variables import is_served, slot_owner
from hotdelta.compat.v1.graph.writers import Uses, find_uses
from hotdelta.compat.v1.recording.recorder import SCOPE
from hotdelta.train.model.variables import ModelVariables, OtherVariable, RowVariable, Table, serving_schema


@dataclass(frozen=True, slots=True, eq=False)
class TableLayout:
    """A table and the slots that have one row for each of its rows, in the same parts."""

    values: SavedVariable
    slots: tuple[SavedVariable, ...]
    strategy: str
    role: str = names.ROLE_SERVING

    @property
    def family(self) -> tuple[SavedVariable, ...]:
        return (self.values, *self.slots)

    @property
    def table(self) -> Table:
        return Table(
            _rows_of(self.values, self.role),
            tuple(_rows_of(slot, names.ROLE_TRAINING) for slot in self.slots),
        )


@dataclass(frozen=True, slots=True, eq=False)
class GraphLayout:
    saved: tuple[SavedVariable, ...]
    tables: tuple[TableLayout, ...]
    others: tuple[SavedVariable, ...]
    uses: Mapping[str, Sequence[Uses]]

    @property
    def variables(self) -> ModelVariables:
        others = tuple(OtherVariable(item.key, item.spec, _role(item, self.saved)) for item in self.others)
        tables = tuple(layout.table for layout in self.tables)
        rows: list[RowVariable | OtherVariable] = [table.values for table in tables]
        served = sorted([*rows, *others], key=lambda item: item.key)
        return ModelVariables(tables, others, self._schema(serving_schema(served)))

    def writers(self, keys: Iterable[str]) -> set[str]:
        """The names of the operations of the user that write to these variables, as far as they are here."""
        uses = [use for key in keys for use in self.uses.get(key, ())]
        names = {writer.name for use in uses for writer in (*use.row_writers, *use.other_writers)}
        return {name for name in names if not name.startswith(f"{SCOPE}/")}

    def _schema(self, schema: Schema) -> Schema:
        """Which ids the rows of a table hold, where that is not simply their number, is part of the schema.

        An export that was made for one layout must not take rows of another.
        """
        layouts = {
            parts_rule(table.values.key): _describe(table)
            for table in self.tables
            if table.values.part_rows and table.strategy != DIV
        }
        return replace(schema, vocabularies=layouts, key_tables=tuple(_key_tables(self.saved)))


def find_layout(saved: Sequence[SavedVariable]) -> GraphLayout:
    uses = {item.key: tuple(find_uses(part) for part in item.parts) for item in saved}
    owners = {item.key: slot_owner(item, saved) for item in saved}
    slots_of = {item.key: [slot for slot in saved if owners[slot.key] is item] for item in saved}
    tables = tuple(
        _table(item, slots_of[item.key], uses[item.key], _role_of_table(item, saved))
        for item in saved
        if owners[item.key] is None and _is_table(item, slots_of[item.key], uses)
    )
    row_keys = {member.key for table in tables for member in table.family}
    others = tuple(item for item in saved if item.key not in row_keys)
    return GraphLayout(tuple(saved), tables, others, uses)


def _is_table(
    item: SavedVariable, slots: Sequence[SavedVariable], uses: Mapping[str, Sequence[Uses]]
) -> bool:
    """Rows are looked up in it, or written to it or to one of its slots; or it grows."""
    if item.growth is not None:
        return True
    if not item.shape or not item.dtype.is_floating:
        return False
    is_written = any(use.row_writers for member in (item, *slots) for use in uses[member.key])
    return is_written or any(use.lookups for use in uses[item.key])


def _table(
    item: SavedVariable, slots: Sequence[SavedVariable], uses: Sequence[Uses], role: str
) -> TableLayout:
    fitting = (
        slot for slot in slots if slot.shape[:1] == item.shape[:1] and slot.part_rows == item.part_rows
    )
    lookups = [lookup for use in uses for lookup in use.lookups]
    return TableLayout(item, tuple(fitting), find_strategy(lookups) if item.part_rows else "", role)


def _rows_of(item: SavedVariable, role: str) -> RowVariable:
    return RowVariable(item.key, item.spec, role, item.growth)


def _role_of_table(item: SavedVariable, saved: Sequence[SavedVariable]) -> str:
    return names.ROLE_SERVING if item.growth is None else _role(item, saved)


def _key_tables(saved: Sequence[SavedVariable]) -> Iterator[KeyTable]:
    """In the order in which the variables of a schema are."""
    key_of = {id(item.parts[0].variable): item.key for item in saved}
    for item in sorted(saved, key=lambda item: item.key):
        growth = item.growth
        if growth is not None and growth.index is not None and slot_owner(item, saved) is None:
            yield KeyTable(item.key, key_of[id(growth.index)], key_of[id(growth.counts)])


def _role(item: SavedVariable, saved: Sequence[SavedVariable]) -> str:
    return names.ROLE_SERVING if is_served(item, saved) else names.ROLE_TRAINING


def _describe(table: TableLayout) -> str:
    return f"{table.strategy or 'unknown'} {' '.join(map(str, table.values.part_rows))}"
