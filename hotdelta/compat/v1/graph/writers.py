"""Who writes to a variable in a graph: operations that name their rows, those that set it up, and all others.

Initializers and the restore operations of Savers set it up: they run before training, and hardly ever again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from exporter.graph.node_definitions import SEGMENT_LOOKUPS
from hotdelta.compat.v1.graph.saved_variables import Part
from hotdelta.tensorflow_internals import attributes_for_new, is_reference
from hotdelta.train.rows.trace_check import READERS, ROW_WRITERS

_PREFIX = "Resource"
_ROW_WRITERS = ROW_WRITERS | {name.removeprefix(_PREFIX) for name in ROW_WRITERS}
# They hand the variable on, also into a cond or a loop; whoever takes it there is looked at.
_PASSING = frozenset({"Identity", "RefIdentity", "Switch", "RefSwitch", "Enter", "RefEnter"})
# DisableCopyOnRead is how a Saver reads.
_READERS = READERS | _PASSING | {"IsVariableInitialized", "DisableCopyOnRead"}
_ASSIGNS = frozenset({"Assign", "AssignVariableOp"})
_RESOURCE_WRITERS = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
_LOOKUPS = frozenset(
    {"ResourceGather", "ResourceGatherNd", "Gather", "GatherV2", "GatherNd", *SEGMENT_LOOKUPS}
)
_OWN = "_hotdelta"
_RECORDS = "_hotdelta_records"
_APART = "_hotdelta_apart"


@dataclass(frozen=True, slots=True)
class Uses:
    """The operations that touch one variable, apart from plain reads. `recorded`: those that record what they write."""

    row_writers: tuple[Any, ...]
    other_writers: tuple[Any, ...]
    set_up: tuple[Any, ...]
    lookups: tuple[Any, ...]
    recorded: tuple[Any, ...] = ()

    @property
    def writers(self) -> tuple[Any, ...]:
        return (*self.row_writers, *self.other_writers, *self.set_up, *self.recorded)


def find_uses(part: Part) -> Uses:
    found = [operation for operation in _consumers(part.reference) if _is_writer(operation)]
    recorded = [operation for operation in found if _RECORDS in operation.node_def.attr]
    writers = [operation for operation in found if operation not in recorded]
    set_up = [operation for operation in writers if _is_set_up(operation, part)]
    others = [operation for operation in writers if operation not in set_up]
    return Uses(
        tuple(operation for operation in others if operation.type in _ROW_WRITERS),
        tuple(operation for operation in others if operation.type not in _ROW_WRITERS),
        tuple(set_up),
        tuple(_lookups(part.reference)),
        tuple(recorded),
    )


def written_variable(operation: Any) -> str | None:
    """The name of the variable that an operation writes to; None: it writes to none. Functions are not looked into."""
    if not operation.inputs or operation.type in _READERS:
        return None
    source = operation.inputs[0]
    takes_reference = operation.op_def.input_arg[0].is_ref
    if not takes_reference and not operation.type.startswith(_RESOURCE_WRITERS):
        return None
    while source.op.type in _PASSING or (is_reference(source) and source.op.inputs):
        source = source.op.inputs[0]
    return str(source.op.name)


def row_indices(writer: Any) -> tf.Tensor:
    """The tensor that says which rows a row writer writes, for any operation of `find_uses(...).row_writers`."""
    position = [argument.name for argument in writer.op_def.input_arg].index("indices")
    indices = writer.inputs[position]
    return indices[..., 0] if "ScatterNd" in writer.type else indices


@contextmanager
def own_operations() -> Iterator[None]:
    """What is added to the default graph inside is ours: no look-up of the user's, and nothing that a step writes."""
    with attributes_for_new(tf.compat.v1.get_default_graph(), {_OWN: tf.compat.v1.AttrValue(b=True)}):
        yield


@contextmanager
def recorded_writes() -> Iterator[None]:
    """What is added to the default graph inside writes in steps, and records by itself what it writes."""
    with attributes_for_new(tf.compat.v1.get_default_graph(), {_RECORDS: tf.compat.v1.AttrValue(b=True)}):
        yield


@contextmanager
def apart_from_steps() -> Iterator[None]:
    """What is added to the default graph inside writes whole and by itself: a cut may come before or after it."""
    with attributes_for_new(tf.compat.v1.get_default_graph(), {_APART: tf.compat.v1.AttrValue(b=True)}):
        yield


def is_apart_from_steps(operation: Any) -> bool:
    return _APART in operation.node_def.attr


def _is_own(operation: Any) -> bool:
    return _OWN in operation.node_def.attr


def _consumers(reference: tf.Tensor) -> Iterator[Any]:
    """Operations on the variable itself; an operation on a reference hands the reference on."""
    seen: set[str] = set()
    queue = [reference]
    while queue:
        for operation in queue.pop().consumers():
            if operation.name in seen or not _takes_reference(operation, reference):
                continue
            seen.add(operation.name)
            queue.extend(output for output in operation.outputs if _hands_on(output))
            yield operation


def _hands_on(tensor: tf.Tensor) -> bool:
    is_handle = bool(tensor.dtype == tf.resource and tensor.op.type in _PASSING)
    return is_handle or is_reference(tensor)


def _takes_reference(operation: Any, reference: tf.Tensor) -> bool:
    if reference.dtype == tf.resource:
        return True
    return any(argument.is_ref for argument in operation.op_def.input_arg)


def _is_writer(operation: Any) -> bool:
    return operation.type not in _READERS and not _is_own(operation)


def _is_set_up(operation: Any, part: Part) -> bool:
    # tf.train.init_from_checkpoint puts another initializer in the place of the one that every variable is born with.
    initializers = {part.variable.initializer.name, f"{part.name}/Assign"}
    if operation.name in initializers:
        return True
    return operation.type in _ASSIGNS and _comes_from_restore(operation.inputs[1])


def _comes_from_restore(tensor: tf.Tensor) -> bool:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return bool(tensor.op.type == "RestoreV2")


def _lookups(reference: tf.Tensor) -> Iterator[Any]:
    """The user's gathers, also through the copy that reading a reference makes, and in a cond or a loop."""
    queue = [reference]
    while queue:
        tensor = queue.pop()
        for operation in tensor.consumers():
            if operation.type in _LOOKUPS and operation.inputs[0] is tensor and not _is_own(operation):
                yield operation
            elif operation.type in _PASSING | {"ReadVariableOp"}:
                queue.extend(operation.outputs)
