"""From named variables, tables and slots to what a trainer saves and which tables it can record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta.chain.bundle.dtypes import has_fixed_size
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Tracking
from hotdelta.chain.format.schema import Schema
from hotdelta.errors import ConfigurationError
from hotdelta.train.model.id_rules import IdRule
from hotdelta.train.model.optimizer_slots import KeyedVariable, SlotVariable
from hotdelta.train.model.variables import ModelVariables, OtherVariable, RowVariable, Table, serving_schema
from hotdelta.train.tables.growth import WaitingVariables, growth_of
from hotdelta.train.tables.sharded import ShardedTouchedRows, is_remote, is_sharded, is_trainable
from hotdelta.train.tables.touched import AnyTouchedRows, GrowingTouchedRows, TouchedRows


@dataclass(frozen=True, slots=True)
class Recorders:
    """A touched set for each table that can have one, the tables that must, and why the others have none."""

    touched: Mapping[str, AnyTouchedRows]
    demanded: frozenset[str]
    reasons: Mapping[str, str]

    def why_compared(self, tables: Iterable[Table]) -> list[tuple[Table, str]]:
        return [(table, self.reasons[table.key]) for table in tables if table.key in self.reasons]


def assemble(
    keyed: Sequence[KeyedVariable],
    *,
    table_keys: Collection[str],
    slots: Iterable[SlotVariable] = (),
    training_only: Iterable[KeyedVariable] = (),
    schema: Schema | None = None,
    parameters: Collection[str] | None = None,
    id_rules: Mapping[str, IdRule] | None = None,
) -> ModelVariables:
    """`keyed` are the model's own variables. Without a schema all of them are served.

    `parameters`: the keys of what is trained; None: what TensorFlow calls trainable.
    Raises ConfigurationError for a variable that no checkpoint can hold.
    """
    for item in keyed:
        _refuse_unsavable(item)
    keyed, usage, waiting = _without_upkeep(keyed)
    served = None if schema is None else {variable.key for variable in schema.variables}
    key_of = {id(item.variable): item.key for item in keyed}
    slots_of: dict[str, list[RowVariable]] = {key: [] for key in table_keys}
    others = [
        OtherVariable(item.key, item.variable, _role(item.key, served))
        for item in keyed
        if item.key not in table_keys
    ]
    for slot in (*slots, *usage):
        owner = key_of[id(slot.of)]
        if owner in slots_of:
            slots_of[owner].append(
                RowVariable(slot.key, slot.variable, names.ROLE_TRAINING, growth_of(slot.variable))
            )
        else:
            others.append(OtherVariable(slot.key, slot.variable, names.ROLE_TRAINING))
    others.extend(OtherVariable(item.key, item.variable, names.ROLE_TRAINING) for item in training_only)
    for key, kept in waiting.items():
        others.append(OtherVariable(key + names.WAITING_COUNTS_SUFFIX, kept.counts, names.ROLE_TRAINING))
    own_tables = tuple(
        Table(
            RowVariable(item.key, item.variable, _role(item.key, served), growth_of(item.variable)),
            tuple(slots_of[item.key]),
        )
        for item in keyed
        if item.key in table_keys
    )
    waiting_tables = (
        Table(RowVariable(key, kept.table, names.ROLE_TRAINING, growth_of(kept.table)))
        for key, kept in waiting.items()
        if kept.table is not None
    )
    tables = (*own_tables, *waiting_tables)
    if parameters is None:
        parameters = [item.key for item in keyed if is_trainable(item.variable)]
    schema = schema or serving_schema([*(table.values for table in tables), *others])
    return ModelVariables(tables, tuple(others), schema, frozenset(parameters), id_rules or {})


def growing_tables(keyed: Iterable[KeyedVariable]) -> set[str]:
    """The keys of the tables that grow, whether somebody calls them tables or not."""
    return {
        item.key
        for item in keyed
        if (growth := growth_of(item.variable)) is not None
        and not growth.is_beside(item.variable)
        and not growth.is_of_waiting
    }


def _without_upkeep(
    keyed: Sequence[KeyedVariable],
) -> tuple[list[KeyedVariable], list[SlotVariable], dict[str, WaitingVariables]]:
    """What a table with keys knows of its rows, saved like a slot of it, and of keys without a row, by its key there.

    Both have keys that say of which table they are.
    """
    tables = {id(growth_of(item.variable)): item for item in keyed if item.key in growing_tables(keyed)}
    waiting = {
        f"{names.WAITING_PREFIX}{growth.waiting.kind}/{item.key}": growth.waiting
        for item in tables.values()
        if (growth := growth_of(item.variable)) is not None and growth.waiting is not None
    }
    of_waiting = {id(each) for kept in waiting.values() for each in (kept.table, kept.counts)}
    kept: list[KeyedVariable] = []
    usage: list[SlotVariable] = []
    for item in keyed:
        growth = growth_of(item.variable)
        if growth is not None and growth.is_beside(item.variable):
            of = tables[id(growth)]
            usage.append(SlotVariable(names.USAGE_PREFIX + of.key, item.variable, of.variable))
        elif id(item.variable) not in of_waiting:
            kept.append(item)
    return kept, usage, waiting


def _refuse_unsavable(item: KeyedVariable) -> None:
    shape, dtype = item.variable.shape, item.variable.dtype.name
    if not shape.is_fully_defined() and growth_of(item.variable) is None:
        raise ConfigurationError(
            f"variable {item.key!r} has shape {shape}", hint="give it a shape that does not change"
        )
    if not has_fixed_size(dtype):
        raise ConfigurationError(
            f"variable {item.key!r} is of {dtype}, which no checkpoint holds",
            hint="leave it out: give the others as a dictionary of names and variables",
        )


def as_tuple(tables: Any) -> tuple[Any, ...]:
    """One key may be given by itself."""
    return (tables,) if isinstance(tables, str) else tuple(tables)


def find_table_keys(
    wanted: Iterable[str | tf.Variable], key_of: Mapping[int, str], *, given: Collection[str] = ()
) -> set[str]:
    """The keys of the given tables, which are named by key or by variable."""
    known = set(key_of.values())
    found = set(given)
    for table in as_tuple(wanted):
        key = table if isinstance(table, str) else key_of.get(id(table))
        if key not in known:
            raise ConfigurationError(
                f"table {table!r} is not a variable of the model",
                hint=f"its keys are {', '.join(sorted(known))}",
            )
        found.add(key)
    return found


def choose_recorders(
    tables: Sequence[Table], *, wanted: Mapping[str, str], refusal: str | None, can_be_told: bool = False
) -> Recorders:
    """Record every table unless the user wants it compared.

    `refusal` is why the optimizer cannot record, if so; `can_be_told`: the user may tell the rows instead, of the
    tables that he wants *touched*.
    """
    unknown = sorted(set(wanted) - {table.key for table in tables})
    if unknown:
        raise ConfigurationError(
            f"tracking names {unknown[0]!r}, which is no table",
            hint=f"the tables are {', '.join(table.key for table in tables) or 'none'}",
        )
    touched: dict[str, AnyTouchedRows] = {}
    reasons: dict[str, str] = {}
    for table in tables:
        mode = _mode(wanted.get(table.key))
        grows = table.values.growth is not None
        is_told = can_be_told and (mode is Tracking.TOUCHED or grows)
        if grows:
            _refuse_comparing(table, mode, None if is_told else refusal)
        if mode is Tracking.TOUCHED and refusal is not None and not is_told:
            raise ConfigurationError(
                f"table {table.key!r} cannot be tracked as touched: {refusal}",
                hint="use an optimizer of hotdelta.keras",
            )
        if mode is Tracking.CHANGED or (refusal is not None and not is_told):
            reasons[table.key] = refusal or "asked for"
        else:
            touched[table.key] = _recorder(table)
    demanded = frozenset(
        table.key
        for table in tables
        if wanted.get(table.key) == Tracking.TOUCHED or table.values.growth is not None
    )
    return Recorders(touched, demanded, reasons)


def _recorder(table: Table) -> AnyTouchedRows:
    name = table.key.replace("/", "_")
    if is_sharded(table.values.variable) or is_remote(table.values.variable):
        return ShardedTouchedRows(table.values.variable, name=name)
    growth = table.values.growth
    return TouchedRows(table.rows, name=name) if growth is None else GrowingTouchedRows(growth, name=name)


def _refuse_comparing(table: Table, mode: Tracking | None, refusal: str | None) -> None:
    """Comparing reads all rows, and of those that a table reserves most have no value."""
    if mode is Tracking.CHANGED or refusal is not None:
        raise ConfigurationError(
            f"table {table.key!r} has no fixed vocabulary and cannot be compared: {refusal or 'asked for'}",
            hint="use an optimizer of hotdelta.keras, without options that write every row",
        )


def _mode(text: str | None) -> Tracking | None:
    try:
        return None if text is None else Tracking(text)
    except ValueError as error:
        raise ConfigurationError(
            f"tracking {text!r} is unknown", hint="say touched or changed, or leave it out"
        ) from error


def _role(key: str, served: Collection[str] | None) -> str:
    return names.ROLE_SERVING if served is None or key in served else names.ROLE_TRAINING
