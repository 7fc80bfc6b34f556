"""The variables of a TF1 graph, with the Session that holds their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.format.manifest import TableRecord, Tracking
from hotdelta.compat.v1.graph.lookup_strategy import find_strategy
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable, find_saved_variables, split_strings
from hotdelta.compat.v1.graph.served_variables import served_variables, slot_owner
from hotdelta.compat.v1.graph.writers import find_uses
from hotdelta.compat.v1.recording.training_graph import training_graph_of
from hotdelta.errors import ConfigurationError
from hotdelta.io.model_state import HeldVariable, ModelState
from hotdelta.io.saved_state import row_layout
from hotdelta.io.variable_class import VariableClass, VariableInfo
from hotdelta.tensorflow_internals import session_below
from hotdelta.train.tables.row_values import Array


def raw_session(session: Any) -> Any:
    """Its hooks do not run when variables are read and written: one that saves would save a half-loaded model.

    Raises ConfigurationError when the MonitoredSession has ended.
    """
    raw = session_below(session)
    if raw is None:
        raise ConfigurationError(
            "the MonitoredSession has ended", hint="save and load inside of its with block"
        )
    return raw


def session_state(session: Any) -> ModelState:
    """Trainable variables are parameters, other global ones persistable; local ones and strings are temporary.

    Keys are the names of tf.train.Saver. No operation is added, so that the graph may be finalized.
    """
    session = raw_session(session)
    with session.graph.as_default():
        numbers, strings = split_strings(tf.compat.v1.global_variables())
        persistable = find_saved_variables(numbers)
        own = {saved.key for saved in served_variables(persistable)}
        step = tf.compat.v1.train.get_global_step()
        temporary = _described([*strings, *tf.compat.v1.local_variables()])
    if not persistable:
        raise ConfigurationError("the graph of the Session has no variables", hint="build the model first")
    tables = _find_tables(persistable)
    held = [
        _hold(
            session,
            saved,
            _class_of(saved),
            is_own=saved.key in own,
            table=tables.get(saved.key),
            owner=_owner_record(saved, persistable, tables),
        )
        for saved in persistable
    ]
    known = {saved.key for saved in persistable}
    held += [
        _hold(session, saved, VariableClass.TEMPORARY, is_own=False)
        for key, saved in temporary.items()
        if key not in known
    ]
    return ModelState(
        "the graph of the Session",
        tuple(held),
        lambda: 0 if step is None else int(_run(session, step)),
        lambda: None,
    )


def _described(temporary: Iterable[Any]) -> dict[str, SavedVariable]:
    """Each part by itself: they are never saved. One whose shape changes cannot be shown."""
    return {
        variable.op.name: SavedVariable(
            variable.op.name,
            tuple(variable.shape.as_list()),
            variable.dtype.base_dtype,
            (Part(variable, 0, 1, ""),),
            is_trainable=False,
        )
        for variable in temporary
        if isinstance(variable, tf.Variable) and variable.shape.is_fully_defined()
    }


def _find_tables(variables: Sequence[SavedVariable]) -> dict[str, TableRecord]:
    """Trained variables in which rows are looked up, and which ids their parts hold."""
    found = {}
    for saved in variables:
        lookups = [lookup for part in saved.parts for lookup in find_uses(part).lookups]
        if lookups and saved.is_trainable and saved.shape:
            strategy = find_strategy(lookups) if saved.part_rows else ""
            found[saved.key] = TableRecord(
                saved.shape,
                saved.dtype.name,
                Tracking.CHANGED,
                0,
                part_rows=saved.part_rows,
                strategy=strategy,
            )
    return found


def _owner_record(
    saved: SavedVariable, variables: Sequence[SavedVariable], tables: Mapping[str, TableRecord]
) -> TableRecord | None:
    """Of the table that a slot belongs to: its rows lie as the table's do."""
    owner = slot_owner(saved, variables)
    return tables.get(owner.key) if owner is not None else None


def _class_of(saved: SavedVariable) -> VariableClass:
    return VariableClass.PARAMETER if saved.is_trainable else VariableClass.PERSISTABLE


def _hold(
    session: Any,
    saved: SavedVariable,
    variable_class: VariableClass,
    *,
    is_own: bool,
    table: TableRecord | None = None,
    owner: TableRecord | None = None,
) -> HeldVariable:
    record = table or owner
    info = VariableInfo(
        saved.key,
        variable_class,
        saved.shape,
        saved.dtype.name,
        is_table=table is not None,
        layout=row_layout(record.part_rows, record.strategy) if record else "",
    )
    variables = [part.variable for part in saved.parts]
    return HeldVariable(
        info,
        tuple(variables),
        is_own,
        saved.array_dtype,
        lambda: _read(session, variables),
        lambda: partial(_write, session, [_assignment(part) for part in saved.parts]),
        table,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Assignment:
    """What to run to give a part its rows, and which tensor to feed them as."""

    part: Part
    fetches: tuple[Any, ...]
    fed: tf.Tensor


def _assignment(part: Part) -> _Assignment:
    """The initializer is the one assignment that every graph has already. In a graph that records, it is recorded.

    Raises ConfigurationError when somebody put an operation in its place that assigns nothing.
    """
    initializer = part.variable.initializer
    # tf.train.init_from_checkpoint puts a tensor in its place.
    operation = initializer.op if isinstance(initializer, tf.Tensor) else initializer
    if len(operation.inputs) < 2:
        raise ConfigurationError(
            f"the initializer of {part.variable.op.name!r} is {operation.name!r}, which assigns no value to it",
            hint="leave the variable its own initializer, or load only the others",
        )
    recording = training_graph_of(operation.graph)
    recorder = recording.recorders.get(operation.name) if recording else None
    return _Assignment(part, (operation, recorder) if recorder else (operation,), operation.inputs[1])


def _read(session: Any, variables: Sequence[Any]) -> Array:
    values = _run(session, list(variables))
    return np.asarray(values[0]) if len(values) == 1 else np.concatenate(values)


def _run(session: Any, fetches: Any) -> Any:
    try:
        return session.run(fetches)
    except tf.errors.FailedPreconditionError as error:
        raise ConfigurationError(
            "the Session holds no value for every variable yet", hint="run the initializer, or load, first"
        ) from error


def _write(session: Any, assignments: Sequence[_Assignment], value: Array) -> None:
    """One part at a time: two initializers may have the same tensor to feed, and a message to a server has a limit."""
    for assignment in assignments:
        first, rows = assignment.part.first_row, assignment.part.rows
        session.run(
            assignment.fetches, {assignment.fed: value[first : first + rows] if value.ndim else value}
        )
