"""Variables that reserve room for all the rows that they may ever have, and how many of those are in use.

Memory that nobody has written to is address space and no more, so that no shape ever changes. What is in it before it
is written is anything: whoever reads such a variable reads the rows in use.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.tensorflow_internals import ResourceVariable, allow_reserving
from hotdelta.train.tables.cells import cells_of
from hotdelta.train.tables.key_upkeep import Ids, Upkeep

_GROWTH = "_hotdelta_growth"


@dataclass(frozen=True, slots=True, eq=False)
class WaitingVariables:
    """What a table with keys knows of keys that have no row yet. `kind`: those of another kind are of no use to it.

    `table` is one that grows, too; None: the counts are all that is known.
    """

    kind: str
    table: tf.Variable | None
    counts: tf.Variable


class Growth:
    """How many rows of a variable are in use, and of the variables beside it that have a row for each of its rows.

    Those are the slots of optimizers. Their rows get their first values in blocks (`fill_slots`), in the step that uses
    them or when they are saved, whichever comes first.
    """

    def __init__(self, capacity: int, counts: tf.Variable, place: int) -> None:
        """`counts`: the variable that says how many rows are in use, at `place`."""
        self.capacity = capacity
        self.counts = counts
        self._place = place
        self._index: tf.Variable | None = None
        self._unknown: tf.Variable | None = None
        self._slots: list[_Slot] = []
        self.upkeep: Upkeep | None = None
        self.waiting: WaitingVariables | None = None
        # Whether its rows are of keys that have no row in the table itself.
        self.is_of_waiting = False
        # Where a Session runs the graph: what runs `fill_slots` in it.
        self.fill_by: Callable[[], None] | None = None

    @property
    def index(self) -> tf.Variable | None:
        """Of the rows of a table with keys: the variable that says which row has a key."""
        return self._index

    @property
    def unknown(self) -> tf.Variable | None:
        """Of the rows of a table with keys: how many unknown keys were looked up, which no checkpoint holds."""
        return self._unknown

    def keyed_by(self, index: tf.Variable, unknown: tf.Variable) -> None:
        self._index, self._unknown = index, unknown

    def own(self, variable: tf.Variable) -> None:
        """From now on `growth_of` finds this growth by the variable."""
        setattr(variable, _GROWTH, self)

    def in_use(self) -> int:
        return int(cells_of(self.counts).value()[self._place])

    def rows_in_use(self) -> tf.Tensor:
        """The same in a graph."""
        return self.count_in(self.counts.read_value())

    def count_in(self, counts: tf.Tensor) -> tf.Tensor:
        """The same of another value of `counts`."""
        return counts[self._place]

    def add_slot(self, variable: tf.Variable, first_row: tf.Tensor) -> None:
        """A variable that grows along, as long as somebody holds it; each of its rows begins as `first_row`."""
        self.own(variable)
        self._slots.append(_Slot(variable, first_row))

    def fill_slots(self) -> None:
        """Write the first values of slot rows that came into use since the last call, in a graph or eagerly."""
        self._slots = [slot for slot in self._slots if slot.variable is not None]
        if not self._slots:
            return
        used = self.rows_in_use()
        filled = [slot.filled.read_value() for slot in self._slots]

        def fill() -> tf.Tensor:
            for slot, first in zip(self._slots, filled, strict=True):
                slot.fill(first, used)
            return used

        tf.cond(used > tf.reduce_min(tf.stack(filled)), fill, lambda: used)

    def fill_slot(self, variable: tf.Variable) -> tf.Tensor:
        """The same for one of them, in a graph. Returns how many rows it has now."""
        (slot,) = (slot for slot in self._slots if slot.variable is variable)
        used, first = self.rows_in_use(), slot.filled.read_value()

        def fill() -> tf.Tensor:
            slot.fill(first, used)
            return used

        return tf.cond(used > first, fill, lambda: used)

    def fill_now(self) -> None:
        """The same between two steps."""
        if self.fill_by is None:
            self.fill_slots()
        else:
            self.fill_by()

    def refill_slots(self) -> None:
        """All slot rows begin anew."""
        for slot in self._slots:
            cells_of(slot.filled).assign(0)
        self.fill_now()

    def reset_slots(self, rows: Ids) -> None:
        """These rows begin anew, when another key gets them."""
        if not len(rows):
            return
        self.fill_now()
        for slot in self._slots:
            slot.reset(rows)

    def is_beside(self, variable: tf.Variable) -> bool:
        """Whether it is one of the variables that have a row for each row."""
        return any(slot.variable is variable for slot in self._slots)

    def filled_of(self, variable: tf.Variable) -> tf.Variable | None:
        """How many rows of a slot have begun. None: it is no slot."""
        return next((slot.filled for slot in self._slots if slot.variable is variable), None)

    def note_loaded(self, *, except_for: Collection[int] = ()) -> None:
        """The values are those of a checkpoint now; some, by the `id` of their variable, were not in it."""
        for slot in self._slots:
            variable = slot.variable
            begins = id(variable) in except_for
            cells_of(slot.filled).assign(0 if begins else self.in_use())
        if self.upkeep is not None:
            self.upkeep.forget()
            if self.waiting is not None and id(self.waiting.counts) in except_for:
                self.upkeep.forget_waiting()


class _Slot:
    """A variable, what each of its rows begins with, and how many of them have begun."""

    def __init__(self, variable: tf.Variable, first_row: tf.Tensor) -> None:
        self._variable = weakref.ref(variable)
        self._first_row = first_row
        with tf.init_scope():
            self.filled = ResourceVariable(tf.zeros([], tf.int64), trainable=False, name="filled_slot_rows")

    @property
    def variable(self) -> tf.Variable | None:
        """None: its optimizer is gone."""
        return self._variable()

    def fill(self, first: tf.Tensor, end: tf.Tensor) -> None:
        variable = self.variable
        if variable is None:
            return
        shape = tf.concat([[end - first], tf.shape(self._first_row, out_type=tf.int64)], axis=0)
        written = tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle,
            indices=tf.range(first, end),
            updates=tf.broadcast_to(self._first_row, shape),
        )
        with tf.control_dependencies([] if written is None else [written]):
            self.filled.assign(end)

    def reset(self, rows: Ids) -> None:
        variable = self.variable
        if variable is not None:
            cells_of(variable).write(
                rows, np.repeat(np.asarray(self._first_row)[np.newaxis], len(rows), axis=0)
            )


def growth_of(variable: Any) -> Growth | None:
    """None: the variable does not grow."""
    return getattr(variable, _GROWTH, None)


def reserved(capacity: int, row_shape: tuple[int, ...], dtype: Any) -> tf.Tensor:
    """Room for so many rows, whose values are not known and which takes no memory yet."""
    allow_reserving(math.prod((capacity, *row_shape)) * tf.as_dtype(dtype).size)
    return tf.raw_ops.Empty(shape=[capacity, *row_shape], dtype=dtype, init=False)


def open_shape(row_shape: tuple[int, ...]) -> tf.TensorShape:
    """What a graph knows of the shape: an export holds the rows in use, and reserves the others when it is updated."""
    return tf.TensorShape([None, *row_shape])


def reserve_variable(
    capacity: int, row_shape: tuple[int, ...], dtype: Any, *, name: str, trainable: bool
) -> tf.Variable:
    return tf.Variable(
        lambda: reserved(capacity, row_shape, dtype),
        shape=open_shape(row_shape),
        dtype=dtype,
        trainable=trainable,
        name=name,
    )


def write_first_rows(variable: tf.Variable, slices: Iterator[tuple[int, npt.NDArray[Any]]]) -> None:
    """Write (first row, rows) over the room that a variable reserves."""
    for first, rows in slices:
        cells_of(variable).write(np.arange(first, first + len(rows), dtype=np.int64), rows)
