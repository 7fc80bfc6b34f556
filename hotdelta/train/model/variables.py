"""What a trainer saves: tables with their optimizer slots, and every other variable. Plain data, no decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.chain.format.schema import Schema, VariableSpec
from hotdelta.errors import ConfigurationError
from hotdelta.logs import counted
from hotdelta.train.model.id_rules import IdRule
from hotdelta.train.tables.growth import Growth


@dataclass(frozen=True, slots=True)
class _KeyedVariable:
    key: str
    variable: tf.Variable
    role: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.variable.shape)

    @property
    def dtype(self) -> str:
        return str(self.variable.dtype.name)


@dataclass(frozen=True, slots=True)
class RowVariable(_KeyedVariable):
    """A variable of which deltas carry rows: a table, or an optimizer slot of a table."""

    growth: Growth | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a variable that grows, with the rows that it reserves."""
        if self.growth is None:
            return tuple(int(size) for size in self.variable.shape)
        return (self.growth.capacity, *(int(size) for size in self.variable.shape[1:]))

    @property
    def rows(self) -> int:
        """How many there are now."""
        return self.shape[0] if self.growth is None else self.growth.in_use()

    @property
    def nbytes(self) -> int:
        return self.rows * math.prod(self.shape[1:]) * int(self.variable.dtype.size)


@dataclass(frozen=True, slots=True)
class Table:
    """A table and the optimizer slots that have one row for each of its rows."""

    values: RowVariable
    slots: tuple[RowVariable, ...] = ()

    @property
    def key(self) -> str:
        return self.values.key

    @property
    def rows(self) -> int:
        return self.values.rows

    @property
    def row_variables(self) -> tuple[RowVariable, ...]:
        return (self.values, *self.slots)


@dataclass(frozen=True, slots=True)
class OtherVariable(_KeyedVariable):
    """A variable that is saved whole whenever it changed."""


@dataclass(frozen=True, slots=True)
class ModelVariables:
    """Everything that is saved, under keys that are stable when the model is built again, and the serving schema.

    `parameters`: the keys of what is trained; None when that is not known. `id_rules`: by which ids of rows are made.
    """

    tables: tuple[Table, ...]
    others: tuple[OtherVariable, ...]
    schema: Schema = field(repr=False)
    parameters: frozenset[str] | None = None
    id_rules: Mapping[str, IdRule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_duplicate_keys(item.key for item in self.everything())
        for table in self.tables:
            refuse_foreign_slots(table)

    @property
    def row_variables(self) -> tuple[RowVariable, ...]:
        return tuple(item for table in self.tables for item in table.row_variables)

    def everything(self) -> Iterator[RowVariable | OtherVariable]:
        yield from self.row_variables
        yield from self.others


def refuse_duplicate_keys(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise ConfigurationError(
                f"two variables have the key {key!r}",
                hint="give their layers (or the variables) different names",
            )
        seen.add(key)


def refuse_foreign_slots(table: Table) -> None:
    for slot in table.slots:
        slot_rows, table_rows = slot.shape[0], table.values.shape[0]
        if slot_rows == table_rows and slot.growth is not table.values.growth:
            raise ConfigurationError(
                f"table {table.key!r} has no fixed vocabulary, and slot {slot.key!r} does not grow with it",
                hint="use an optimizer of hotdelta.keras",
            )
        if slot_rows != table_rows:
            raise ConfigurationError(
                f"slot {slot.key!r} has {counted(slot_rows, 'row')}, its table {table.key!r} has {table_rows}",
                hint="list only slots with one row for each row of the table; all else is an other variable",
            )


def serving_schema(variables: Iterable[RowVariable | OtherVariable]) -> Schema:
    """The schema of a model whose trainer left no serving graph: its served variables, no signatures."""
    specs = tuple(
        VariableSpec(item.key, item.shape, item.dtype, isinstance(item, RowVariable))
        for item in variables
        if item.role == names.ROLE_SERVING
    )
    return Schema(variables=specs, signatures={}, vocabularies={})
