"""A table with keys in a graph of TensorFlow 1: its variables, its look-ups, and what its gradients do.

A look-up reads. Only training inserts: the gradient of a look-up finds rows for the keys of the batch, and gives them
to the new ones. So evaluation and serving never change a table, with the same graph as training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.compat.v1.embedding.reserved import ReservedVariable, kept_in, private_variables
from hotdelta.compat.v1.embedding.session_cells import SessionCells, SessionLink
from hotdelta.compat.v1.embedding.touched import ReservedFlags
from hotdelta.compat.v1.graph.saved_variables import is_remote, on_device_of, save_as
from hotdelta.compat.v1.graph.served_variables import keep_from_serving
from hotdelta.compat.v1.graph.writers import own_operations, recorded_writes
from hotdelta.errors import CommitError, ConfigurationError
from hotdelta.tensorflow_internals import (
    ResourceVariable,
    attributes_for_new,
    is_closed,
    is_in_control_flow,
    run_before,
    without_devices,
)
from hotdelta.train.keys.index import BUCKETS, FEWEST_BUCKETS, ROWS, where_true
from hotdelta.train.keys.table import KeyedTable, TableSettings
from hotdelta.train.keys.upkeep import FIRST_USAGE, SECOND, STEP, TableUpkeep
from hotdelta.train.rows.outside_writes import tell_through
from hotdelta.train.tables.cells import cells_of
from hotdelta.train.tables.graph_walk import needed_operations
from hotdelta.train.tables.growth import Growth, growth_of

v1 = tf.compat.v1
Array = npt.NDArray[Any]

# Of the call that finds rows: the function that finds them where nothing is trained, and whose they are.
SERVED_BY = "_hotdelta_served_by"
# How many inputs that function takes: the keys, and what `_capture` captures.
SERVED_INPUTS = 4

_GRADIENT_OF_ROWS = "HotdeltaEmbeddingRows"
_GRADIENT_OF_CHOICE = "HotdeltaEmbeddingChoice"
# Nobody trains what is served.
GRADIENTS = (_GRADIENT_OF_ROWS, _GRADIENT_OF_CHOICE)
_LOOKUPS = "_hotdelta_embedding_lookups"
_KEYS = tf.TensorSpec([None], tf.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Lookup:
    """One look-up of a graph: different keys, and how often each of them is there."""

    table: EmbeddingTable
    keys: tf.Tensor
    counts: tf.Tensor


class MatrixRows:
    """A key begins with row `key mod rows` of a matrix; so does a negative one: the remainder is never negative."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix

    def rows(self, keys: tf.Tensor, width: int) -> tf.Tensor:  # noqa: ARG002 - the matrix has it
        numbers = tf.math.floormod(keys, tf.constant(int(self.matrix.shape[0]), tf.int64))
        return tf.raw_ops.ResourceGather(
            resource=self.matrix.handle, indices=numbers, dtype=self.matrix.dtype
        )


class EmbeddingTable:
    """`rows` is what users train. Made in the default graph, in which it stays."""

    def __init__(self, name: str, settings: TableSettings, rows: ReservedVariable) -> None:
        self.name = name
        self.settings = settings
        self.rows = rows
        with on_device_of(rows):
            self._make_variables()
        self._link = SessionLink()
        self._is_ready = False
        # When the table began whose keys those who save know.
        self._known_begin = -1
        # On a server, when it is ready: while the mutex is held, no worker looks keys up or inserts any. It outlives
        # the Session that took it; whoever takes it begins with letting others go on.
        self.stop_others: tf.Operation | None = None
        self.let_others_go_on: tf.Operation | None = None
        self.has_values: tf.Tensor | None = None
        # What gives slots of new rows their first values, and what reads the values of a few numbers.
        self.fills: list[tf.Operation] = []
        self.questions: list[tf.Tensor] = []
        # Whether a chain saves what its Session trains.
        self.is_trained = False
        # For each gradient what inserts, and what waits until the slots of new rows have begun; by the call of
        # tf.gradients that made them.
        self._insertions: dict[str, list[tuple[tf.Operation, tf.Operation]]] = {}
        self.slots: list[ReservedVariable] = []
        self._find = self._function(self.keyed.index.find)
        self._insert = self._function(self._find_or_insert, _KEYS)
        # Of each of them: when the table began that gave the rows.
        self._insertions_begun: list[tf.Tensor] = []
        self._served = self._serving_function()

    def _make_variables(self) -> None:
        """All of them where the rows are."""
        name, settings, rows = self.name, self.settings, self.rows
        # In no collection: begun with the rows, and in no checkpoint.
        self.private: list[Any] = []
        self.counts = _whole_variable(settings.first_counts, f"{name}_counts")
        self.index = ReservedVariable(
            capacity=settings.max_buckets,
            first_row=np.zeros(settings.bucket_columns, np.int64),
            first_count=FEWEST_BUCKETS,
            name=f"{name}_index",
        )
        self.growth = Growth(settings.capacity, self.counts, ROWS)
        self.growth.own(rows)
        Growth(settings.max_buckets, self.counts, BUCKETS).own(self.index)
        self.usage = self._make_usage() if settings.counts_uses else None
        self.waiting, self.waiting_counts = self._make_waiting()
        with private_variables(name) as private:
            self.keyed = KeyedTable(
                settings,
                rows=rows,
                index=self.index,
                counts=self.counts,
                usage=self.usage,
                waiting=self.waiting,
                waiting_counts=self.waiting_counts,
                name=name,
            )
        self.private.extend(private)
        rows.begin_with(private)
        self._flags = [self._make_flags(variable) for variable in self._growing]
        if self.usage is not None:
            self._flags[0].watch(self.usage)
        # When the table began anew, in microseconds. Nothing drawn: where a seed is set, each Session draws the same.
        with private_variables(name) as begun:
            self._begun = ResourceVariable(
                lambda: tf.cast(tf.timestamp() * 1e6, tf.int64), trainable=False, name="begun"
            )
        rows.begin_with(begun)
        self.private.extend(begun)
        # A worker waits until all variables have values. Then this one, the last, says that they are the first ones.
        for variable in (*self._growing, self.usage, self.waiting_counts):
            if variable is not None:
                run_before(self.counts.initializer, variable.initializer)
        with v1.name_scope(None), tf.control_dependencies(None):
            self._mutex = tf.raw_ops.MutexV2(
                container="", shared_name=f"hotdelta/{name}", name=f"{name}_mutex"
            )

    @property
    def _growing(self) -> list[ReservedVariable]:
        found = [self.rows, self.index, self.waiting]
        return [variable for variable in found if variable is not None]

    def _make_flags(self, variable: ReservedVariable) -> ReservedFlags:
        growth = growth_of(variable)
        if growth is None:
            raise ValueError(f"{variable.name} does not grow")
        with private_variables(variable.op.name) as private:
            flags = ReservedFlags(variable, growth, name=f"{variable.op.name}_touched")
        variable.begin_with(private)
        return flags

    def _make_usage(self) -> ReservedVariable:
        return self._make_slot(
            np.array(FIRST_USAGE, np.int64), f"{self.name}_usage", names.USAGE_PREFIX + self.name
        )

    def _make_slot(self, first_row: Array, name: str, key: str | None) -> ReservedVariable:
        with on_device_of(self.rows):
            slot = ReservedVariable(capacity=self.settings.capacity, first_row=first_row, name=name)
            with private_variables(name) as filled:
                self.growth.add_slot(slot, first_row)
        slot.begin_with(filled)
        self.private.extend(filled)
        if key is not None:
            save_as(slot, key)
        return slot

    def _make_waiting(self) -> tuple[ReservedVariable | None, Any]:
        layout = self.settings.waiting
        if layout is None:
            return None, None
        key = f"{names.WAITING_PREFIX}{layout.kind}/{self.name}"
        counts = _whole_variable(layout.first_counts, f"{self.name}_waiting_counts")
        save_as(counts, key + names.WAITING_COUNTS_SUFFIX)
        keep_from_serving(counts)
        if layout.shape is None:
            return None, counts
        rows, columns = layout.shape
        table = ReservedVariable(
            capacity=rows,
            first_row=np.zeros(columns, layout.dtype.as_numpy_dtype),
            first_count=layout.first_rows,
            name=f"{self.name}_waiting",
        )
        save_as(table, key)
        keep_from_serving(table)
        return table, counts

    @property
    def is_on_server(self) -> bool:
        """Whether a parameter server holds it: then other workers may train it at any time."""
        return is_remote(self.rows.device)

    # Functions of the graph. Of those that go through the index one runs at a time.

    def _function(self, body: Callable[..., Any], *more: tf.TensorSpec) -> Any:
        @tf.autograph.experimental.do_not_convert
        def alone(*inputs: tf.Tensor) -> Any:
            graph = v1.get_default_graph()
            self._capture(graph)
            graph.capture(self._mutex)
            # Not before what it is called with is there: that may need the mutex, too.
            with tf.control_dependencies(inputs):
                lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            before = len(graph.get_operations())
            with tf.control_dependencies([lock]):
                found = body(*(tf.identity(each) for each in inputs))
            # All that writes, too, and not only what is found.
            with tf.control_dependencies(graph.get_operations()[before:]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
                return tf.nest.map_structure(tf.identity, found)

        return self._called_here(tf.function(alone, input_signature=[_KEYS, *more], autograph=False))

    def _called_here(self, function: Any) -> Callable[..., Any]:
        """What it does is done where the rows are."""

        def call(*inputs: tf.Tensor) -> Any:
            with without_devices(v1.get_default_graph()):
                function.get_concrete_function()
            with on_device_of(self.rows):
                return function(*inputs)

        return call

    def _capture(self, graph: Any) -> None:
        """Always in this order: so the function that serves takes what the one that it replaces takes."""
        for variable in (self.counts, self.index, self.unknown):
            graph.capture(variable.handle)

    def _find_or_insert(self, keys: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.keyed.find_or_insert(keys, counts), self._begun.read_value()

    def _serving_function(self) -> str:
        """The name, in the library of the graph, of what finds rows where nobody trains: it locks nothing."""

        def find(keys: tf.Tensor) -> tf.Tensor:
            self._capture(v1.get_default_graph())
            return self.keyed.find(keys)

        graph = v1.get_default_graph()
        with without_devices(graph):
            concrete = tf.function(find, input_signature=[_KEYS], autograph=False).get_concrete_function()
        concrete.add_to_graph(graph)
        return str(concrete.name.decode() if isinstance(concrete.name, bytes) else concrete.name)

    @property
    def unknown(self) -> Any:
        """How often unknown keys were looked up; counted only where the table is served."""
        return self.growth.unknown

    # In the graph of the user.

    def look_up(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The row of each different key of a vector, and for each key which of them it is."""
        graph = v1.get_default_graph()
        with v1.name_scope(f"{self.name}_lookup"):
            unique, positions, counts = tf.unique_with_counts(keys, out_idx=tf.int64)
            attributes = {SERVED_BY: v1.AttrValue(s=self._served.encode())}
            with attributes_for_new(graph, attributes), own_operations():
                numbers = self._find(unique)
            with on_device_of(self.rows), graph.gradient_override_map({"ResourceGather": _GRADIENT_OF_ROWS}):
                values = tf.raw_ops.ResourceGather(
                    resource=self.rows.handle, indices=numbers, dtype=self.rows.dtype
                )
            _lookups(graph)[values.op.name] = _Lookup(self, unique, counts)
            if self.settings.default is None:
                with on_device_of(self.rows), graph.gradient_override_map({"SelectV2": _GRADIENT_OF_CHOICE}):
                    values = tf.where((numbers > 0)[:, tf.newaxis], values, self.keyed.first_rows(unique))
            return values, positions

    def update(self, lookup: _Lookup, read: tf.Operation, gradient: tf.Tensor) -> tf.IndexedSlices:
        """The gradient of the rows that the keys have now."""
        gradient = tf.convert_to_tensor(gradient)
        before = self._insertions_beside(read)
        earlier = [inserted for inserted, _ in before[-1:]]
        with tf.control_dependencies([read, gradient.op, *earlier]), recorded_writes():
            rows, begun = self._insert(lookup.keys, lookup.counts)
        if not is_in_control_flow(rows.op):
            self._insertions_begun.append(begun)
        with tf.control_dependencies([rows.op]):
            ready = tf.no_op(name="slots_have_begun")
        for _, waiting in before[-1:]:
            run_before(waiting, ready)
        before.append((rows.op, ready))
        for slot in self.slots:
            self._begin_before(slot, rows.op, ready)
        with tf.control_dependencies([ready]):
            if self._has_several_lookups(read.graph):
                with own_operations():
                    rows = self._find(lookup.keys)
            known = where_true(rows > 0)
            rows = tf.gather(rows, known)
        # As TensorFlow makes it for a branch that is not taken.
        shape = tf.constant([self.settings.capacity, self.settings.width], tf.int32)
        return tf.IndexedSlices(tf.gather(gradient, known), rows, dense_shape=shape)

    def _insertions_beside(self, read: tf.Operation) -> list[tuple[tf.Operation, tf.Operation]]:
        """Those of other look-ups of the same step, in order, each with what waits until all of them are done.

        So a key that any of them admits is trained by all, and which comes first is no matter of chance. What is in a
        branch stands alone: nothing outside may wait for it.
        """
        scope = str(v1.get_default_graph().get_name_scope())
        call = scope if is_in_control_flow(read) else scope.removesuffix(f"{read.name}_grad")
        return self._insertions.setdefault(call, [])

    def _has_several_lookups(self, graph: Any) -> bool:
        return sum(lookup.table is self for lookup in _lookups(graph).values()) > 1

    def guard(self, writer: tf.Operation) -> None:
        """It fails when the table begins anew between the call that found the rows and the write to them.

        A chief that takes the place of a lost one restores a table that other workers go on training. The rows are
        those of other keys then.
        """
        needed = needed_operations(writer.inputs)
        begun = [each for each in self._insertions_begun if each.op in needed]
        if not begun:
            return
        # As late as may be: not before all is there that is written.
        waiting = [each.op for each in writer.inputs if each.dtype != tf.resource]
        with on_device_of(self.rows), tf.control_dependencies(waiting):
            is_same = tf.reduce_all(tf.equal(self._begun.read_value(), tf.stack(begun)))
            said = f"embedding variable {self.name} was restored while a step trained it: start this worker again"
            run_before(writer, tf.raw_ops.Assert(condition=is_same, data=[said]))

    def add_slot(self, first_row: Array, name: str) -> ReservedVariable:
        """A variable with a row for each row, for an optimizer; each of its rows begins as `first_row`."""
        slot = self._make_slot(first_row, name, None)
        self.slots.append(slot)
        run_before(self.counts.initializer, slot.initializer)
        for inserted, ready in chain.from_iterable(self._insertions.values()):
            self._begin_before(slot, inserted, ready)
        return slot

    def _begin_before(self, slot: ReservedVariable, inserted: tf.Operation, ready: tf.Operation) -> None:
        with v1.name_scope(None), tf.control_dependencies([inserted]):
            run_before(ready, self._fill(slot))

    def _fill(self, slot: ReservedVariable) -> tf.Operation:
        def fill(_: tf.Tensor) -> tf.Tensor:
            return self.growth.fill_slot(slot)

        with recorded_writes():
            found: tf.Operation = self._function(fill)(tf.zeros([0], tf.int64)).op
        return found

    def snapshot(self) -> dict[int, tf.Tensor]:
        """What is there of keys at one moment, by the `id` of its variable; all slots have begun then.

        Of rows nothing: those that the counts say are in use stay where they are.
        """
        variables = [self.counts, self.index]
        if self.waiting_counts is not None:
            variables += (
                [self.waiting_counts] if self.waiting is None else [self.waiting_counts, self.waiting]
            )

        def read(_: tf.Tensor) -> list[tf.Tensor]:
            for slot in (*self.slots, *([] if self.usage is None else [self.usage])):
                self.growth.fill_slot(slot)
            return [_all_rows(variable) for variable in variables]

        with own_operations():
            values = self._function(read)(tf.zeros([0], tf.int64))
        return {id(variable): value for variable, value in zip(variables, values, strict=True)}

    def _fill_when_alone(self, slot: ReservedVariable) -> tf.Operation:
        def fill(_: tf.Tensor) -> tf.Tensor:
            return self.growth.fill_slot(slot)

        function = tf.function(fill, input_signature=[_KEYS], autograph=False)
        with recorded_writes():
            found: tf.Operation = self._called_here(function)(tf.zeros([0], tf.int64)).op
        return found

    def frequencies(self, keys: tf.Tensor) -> tf.Tensor:
        with own_operations():
            return self._function(self.keyed.frequencies)(keys)

    def last_steps(self, keys: tf.Tensor) -> tf.Tensor:
        with own_operations():
            return self._function(self.keyed.last_steps)(keys)

    def stamp(self, rows: tf.Tensor, moment: tf.Tensor) -> tf.Operation:
        """These rows were trained until `moment`: [step, second]. As TableUpkeep.stamp, in the graph."""
        if self.usage is None:
            raise ValueError(f"{self.name} does not count")
        known = tf.gather(rows, where_true(rows > 0))
        columns = tf.constant([STEP, SECOND], tf.int64)
        count = tf.shape(known)[0]
        places = tf.stack([tf.repeat(known, 2), tf.tile(columns, [count])], axis=1)
        return tf.raw_ops.ResourceScatterNdUpdate(
            ref=self.usage.handle, indices=places, updates=tf.tile(moment, [count])
        )

    def key_count(self) -> tf.Tensor:
        """How many keys have a row. Those that went, and whose rows nobody has got yet, do not count."""

        def count(_: tf.Tensor) -> tf.Tensor:
            return tf.size(self.keyed.index.entries()[0], out_type=tf.int64)

        with own_operations():
            return self._function(count)(tf.zeros([0], tf.int64))

    def all_keys(self) -> Sequence[tf.Tensor]:
        """Every key and the number of its row."""

        def read(_: tf.Tensor) -> Sequence[tf.Tensor]:
            return self.keyed.index.entries()

        with own_operations():
            found: Sequence[tf.Tensor] = self._function(read)(tf.zeros([0], tf.int64))
        return found

    # Between two steps.

    def make_ready(self) -> None:
        """Add what reads and writes its variables between two steps; all slots are there, and the graph is open."""
        if self._is_ready:
            return
        self._is_ready = True
        with on_device_of(self.rows):
            self._make_ready()

    def _make_ready(self) -> None:
        own = (self.rows, self.index, self.counts, self.usage, self.waiting, self.waiting_counts)
        cells = {
            id(variable): SessionCells(variable, self._link)
            for variable in (*own, *self.slots, *self.private)
            if variable is not None
        }
        single = [variable for variable in self.private if variable.shape.rank == 0]
        few = [*single, self.counts, *([] if self.waiting_counts is None else [self.waiting_counts])]
        self.questions = [cells[id(variable)].question for variable in few]
        slots = self.slots if self.usage is None else [*self.slots, self.usage]
        if self.is_on_server:
            fill = [self._fill_when_alone(slot) for slot in slots]
            held = tf.raw_ops.VarHandleOp(
                dtype=tf.variant, shape=[], shared_name=f"hotdelta/{self.name}/held_mutex"
            )
            lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            self.stop_others = tf.raw_ops.AssignVariableOp(resource=held, value=lock)
            self.has_values = tf.raw_ops.VarIsInitializedOp(resource=self.counts.handle)
            self.let_others_go_on = tf.raw_ops.DestroyResourceOp(resource=held, ignore_lookup_error=True)
        else:
            fill = [self._fill(slot) for slot in slots]
        self.fills = fill
        self.growth.fill_by = lambda: self._link.run(fill)
        for variable, flags in zip(self._growing, self._flags, strict=True):
            rows = v1.placeholder(tf.int64, [None])
            tell_through(variable, partial(self._tell, flags.mark(rows), rows))

    def run(self, fetches: Any) -> Any:
        """In the Session that has its values."""
        return self._link.run(fetches)

    def remember(self, answers: Sequence[Array]) -> None:
        """To `questions`: they stay true until this process writes, or `forget`."""
        names = [question.name for question in self.questions]
        self._link.remembered = dict(zip(names, answers, strict=True))

    def forget(self) -> None:
        self._link.remembered = {}

    def _tell(self, mark: tf.Operation, fed: tf.Tensor, rows: npt.NDArray[np.int64]) -> None:
        self._link.run(mark, {fed: rows})

    def reach_in(self, session: Any) -> None:
        """From now on this is the Session that has its values. Raises ConfigurationError while another one trains."""
        before = self._link.session
        if self.is_trained and before is not session and not is_closed(before):
            raise ConfigurationError(
                f"embedding variable {self.name} is trained and saved in another Session of this graph",
                hint="restore it in a graph of its own: build the model once more under tf.Graph().as_default()",
            )
        self._link.session = session

    def note_begun(self) -> None:
        """What its Session holds is what whoever saves goes on from."""
        self._known_begin = int(cells_of(self._begun).value())

    def refuse_if_begun_anew(self) -> None:
        """Raises CommitError: its rows in use are fewer than those of the newest commit, and belong to other keys."""
        if int(cells_of(self._begun).value()) != self._known_begin:
            raise CommitError(
                f"embedding variable {self.name} was initialized, or restored by a Saver of no chain, after the chain "
                "began",
                hint="start training again: it goes on from the newest commit. In the middle of training restore with "
                "a Saver made with incremental_save_restore=True",
            )

    @property
    def upkeep(self) -> TableUpkeep:
        return self.keyed.upkeep

    @property
    def companions(self) -> list[Any]:
        """What its rows are worth nothing without."""
        first_rows = [self.settings.initial.matrix] if isinstance(self.settings.initial, MatrixRows) else []
        return [self.index, self.counts, *first_rows, *self.own_record]

    @property
    def own_record(self) -> list[Any]:
        """What it knows of its keys beside their rows, which a checkpoint need not have."""
        found = (self.usage, self.waiting, self.waiting_counts)
        return [variable for variable in found if variable is not None]


def _all_rows(variable: Any) -> tf.Tensor:
    growth = growth_of(variable)
    if growth is None:
        return variable.read_value()
    rows = tf.range(growth.rows_in_use())
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype)


def _whole_variable(first: Array, name: str) -> Any:
    """`name` is that in the graph, whatever scope is open: checkpoints know it by that."""
    with v1.name_scope(None), tf.control_dependencies(None):
        return v1.Variable(first, trainable=False, use_resource=True, name=name)


@tf.RegisterGradient(_GRADIENT_OF_ROWS)
def _of_rows(read: tf.Operation, gradient: Any) -> tuple[tf.IndexedSlices, None]:
    lookup = _lookups(read.graph).get(read.name)
    if lookup is None:
        raise ValueError(f"{read.name} is a look-up of a graph that was imported, which cannot be trained")
    return lookup.table.update(lookup, read, gradient), None


@tf.RegisterGradient(_GRADIENT_OF_CHOICE)
def _of_choice(_choice: tf.Operation, gradient: Any) -> tuple[None, Any, None]:
    """A key that has no row yet is trained as one that has: it gets its row then, with what was looked up."""
    return None, gradient, None


def _lookups(graph: Any) -> dict[str, _Lookup]:
    return kept_in(graph, _LOOKUPS)
