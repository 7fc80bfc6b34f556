"""A table that finds its rows by keys: rows, an index of the keys, and how much of both is in use.

Row 0 belongs to no key: it is what unknown keys read. All three are variables whose rows, or values, are saved as they
are, so that whoever has the saved values has the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.format import key_index
from hotdelta.chain.format.key_index import PLACES
from hotdelta.errors import ConfigurationError
from hotdelta.logs import counted
from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.keys.free_rows import FreeRows
from hotdelta.train.keys.index import (
    BUCKETS,
    FEWEST_BUCKETS,
    ROWS,
    RowIndex,
    buckets_for,
    fingerprints,
    first_counts,
)
from hotdelta.train.keys.initial_rows import InitialRows
from hotdelta.train.keys.policies import NO_EVICTION, Admission, Eviction
from hotdelta.train.keys.upkeep import COUNT, FIRST_USAGE, STEP, USAGE_COLUMNS, TableUpkeep
from hotdelta.train.keys.waiting import Waiting, WaitingLayout, waiting_in
from hotdelta.train.rows.outside_writes import tell_of_all, tell_of_rows
from hotdelta.train.tables.growth import (
    Growth,
    WaitingVariables,
    growth_of,
    reserve_variable,
    write_first_rows,
)
from hotdelta.train.tables.key_upkeep import UNKNOWN
from hotdelta.train.tables.row_values import read_slice

Array = npt.NDArray[Any]

# With as many rows the numbers of buckets still fit the halves of a fingerprint.
MOST_ROWS = 10**9
_SLICE_ROWS = 1 << 18
# Keys that come all at once are placed without moving any, which takes more room.
_BULK_LOAD = 0.45


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a table is made with. `default`: what unknown keys read; None: what their first row would be.

    `is_counting`: how often each key is trained is counted, whether a policy asks or not.
    """

    width: int
    max_rows: int
    initial: InitialRows
    default: tuple[float, ...] | None
    dtype: tf.DType = tf.float32
    eviction: Eviction = NO_EVICTION
    admission: Admission | None = None
    is_counting: bool = False

    @property
    def counts_uses(self) -> bool:
        """Whether it is counted how often each key is trained."""
        return self.is_counting or self.eviction.needs_counts

    @property
    def capacity(self) -> int:
        """With the row of unknown keys."""
        return self.max_rows + 1

    @property
    def max_buckets(self) -> int:
        return buckets_for(self.max_rows)

    @property
    def bucket_columns(self) -> int:
        return key_index.BUCKET_COLUMNS

    @property
    def usage_columns(self) -> int:
        return USAGE_COLUMNS

    @property
    def first_counts(self) -> Array:
        return first_counts()

    @property
    def waiting(self) -> WaitingLayout | None:
        """None: every key that is trained gets a row."""
        return None if self.admission is None else WaitingLayout.of(self.admission, max_rows=self.max_rows)

    def make_rows(self, counts: tf.Variable, *, name: str) -> tf.Variable:
        default = self.default or (0.0,) * self.width
        first = np.array([default], self.dtype.as_numpy_dtype)
        return _started(first, self.capacity, Growth(self.capacity, counts, ROWS), name=name, trainable=True)

    def make_index(self, counts: tf.Variable, *, name: str) -> tf.Variable:
        first, most = np.zeros((FEWEST_BUCKETS, self.bucket_columns), np.int64), self.max_buckets
        return _started(first, most, Growth(most, counts, BUCKETS), name=name, trainable=False)

    def make_waiting(self, layout: WaitingLayout, *, name: str) -> tf.Variable | None:
        """The table of keys that have no row yet, if there is one."""
        if layout.shape is None:
            return None
        rows, columns = layout.shape
        variable = _reserved(rows, (columns,), layout.dtype, name=name, trainable=False)
        write_first_rows(variable, layout.first_slices())
        return variable

    def make_usage(self, rows: tf.Variable, *, name: str) -> tf.Variable:
        """How often and when each row was trained, which only some policies want to know."""
        growth = _growth(rows)
        variable = reserve_variable(self.capacity, (USAGE_COLUMNS,), tf.int64, name=name, trainable=False)
        with tf.init_scope():
            growth.add_slot(variable, tf.constant(FIRST_USAGE, tf.int64))
        return variable


class KeyedTable:
    """Look-ups in one table, over the variables that it is made of."""

    def __init__(
        self,
        settings: TableSettings,
        *,
        rows: tf.Variable,
        index: tf.Variable,
        counts: tf.Variable,
        usage: tf.Variable | None = None,
        waiting: tf.Variable | None = None,
        waiting_counts: tf.Variable | None = None,
        name: str = "",
    ) -> None:
        self.settings = settings
        self.name = name
        self.rows = rows
        self.counts = counts
        self._usage = usage
        free, growth = FreeRows(settings.capacity), _growth(rows)
        self.index = RowIndex(index, counts, growth=_growth(index), free=free, most_rows=settings.capacity)
        with tf.init_scope():
            self._unknown = ResourceVariable(tf.zeros([], tf.int64), trainable=False, name="unknown_keys")
        growth.keyed_by(index, self._unknown)
        self._waiting: Waiting | None = None
        layout = settings.waiting
        if settings.admission is not None and layout is not None and waiting_counts is not None:
            growth.waiting = WaitingVariables(layout.kind, waiting, waiting_counts)
            self._waiting = waiting_in(settings.admission, growth.waiting, max_rows=settings.max_rows)
        self.upkeep = TableUpkeep(
            name,
            rows=rows,
            growth=growth,
            index=self.index,
            free=free,
            usage=usage,
            eviction=settings.eviction,
            waiting=self._waiting,
        )
        growth.upkeep = self.upkeep

    @tf.autograph.experimental.do_not_convert
    def look_up(self, keys: tf.Tensor, *, is_training: bool) -> tf.Tensor:
        """A row of values for each key of a vector, in a graph or eagerly. In training new keys get rows."""
        if is_training:
            unique, positions, counts = self._unique(keys)
            numbers = tf.gather(self.find_or_insert(unique, counts), positions)
        else:
            numbers = self.find(keys)
        values = tf.gather(self.rows, numbers)
        if self.settings.default is not None:
            return values
        is_unknown = tf.equal(numbers, 0)
        return tf.cond(
            tf.reduce_any(is_unknown),
            lambda: tf.where(is_unknown[:, tf.newaxis], self.first_rows(keys), values),
            lambda: values,
        )

    def _unique(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Where nobody asks how often a key is there, it is not counted."""
        if self._waiting is None and not self.settings.counts_uses:
            return *tf.unique(keys), None
        return tuple(tf.unique_with_counts(keys, out_idx=tf.int64))

    def find_or_insert(self, keys: tf.Tensor, counts: tf.Tensor | None) -> tf.Tensor:
        """The row of each key of a vector of different ones, which were seen so often; 0 for those that get none."""
        if self._waiting is None or counts is None:
            rows = self.index.find_or_insert(keys, self._write_first_rows)
        else:
            admit = self._waiting.admit
            rows, counts = self.index.find_or_admit(keys, counts, self._write_first_rows, admit)
        if self._usage is not None and counts is not None and self.settings.counts_uses:
            self._count(self._usage, rows, counts)
        return rows

    def frequencies(self, keys: tf.Tensor) -> tf.Tensor:
        """How often each key of a vector was trained; of one without a row, how often it was seen, if that is known."""
        halves = fingerprints(keys)
        rows = self.index.find(keys)
        waiting = tf.zeros_like(rows) if self._waiting is None else self._waiting.seen(keys, halves)
        return tf.where(rows > 0, self._usage_of(rows, COUNT), waiting)

    def last_steps(self, keys: tf.Tensor) -> tf.Tensor:
        """When each key of a vector was last trained, as of the newest commit; -1 for what is not known."""
        rows = self.index.find(keys)
        return tf.where(rows > 0, self._usage_of(rows, STEP), tf.constant(UNKNOWN, tf.int64))

    def _usage_of(self, rows: tf.Tensor, column: int) -> tf.Tensor:
        if self._usage is None or not self.settings.counts_uses:
            raise ConfigurationError(
                f"table {self.name!r} does not count how often, and when, its keys are trained",
                hint="give it a policy of eviction or admission",
            )
        at = tf.stack([rows, tf.fill(tf.shape(rows), tf.constant(column, tf.int64))], axis=1)
        return tf.raw_ops.ResourceGatherNd(resource=self._usage.handle, indices=at, dtype=tf.int64)

    def _count(self, usage: tf.Variable, rows: tf.Tensor, counts: tf.Tensor) -> None:
        """How often the keys of these rows were seen; row 0, of unknown keys, counts nothing."""
        _growth(self.rows).fill_slots()
        at = tf.stack([rows, tf.zeros_like(rows)], axis=1)
        added = tf.raw_ops.ResourceScatterNdAdd(
            ref=usage.handle, indices=at, updates=counts * tf.cast(rows > 0, tf.int64)
        )
        tell_of_rows(usage, [] if added is None else [added], rows)

    def find(self, keys: tf.Tensor) -> tf.Tensor:
        """The row of each key of a vector where nobody trains; unknown keys are counted."""
        numbers = self.index.find(keys)
        self._count_unknown(numbers)
        return numbers

    def _count_unknown(self, numbers: tf.Tensor) -> None:
        count = tf.reduce_sum(tf.cast(tf.equal(numbers, 0), tf.int64))
        tf.raw_ops.AssignAddVariableOp(resource=self._unknown.handle, value=count)

    def items(self) -> tuple[Array, Array]:
        """Every key and its row, sorted by key. Not for use in a graph."""
        keys, numbers = self._entries()
        order = np.argsort(keys)
        rows = read_slice(self.rows, 0, _growth(self.rows).in_use())
        return keys[order], rows[numbers[order]]

    def _entries(self) -> tuple[Array, Array]:
        """Every key and the number of its row."""
        buckets = read_slice(self.index.buckets, 0, self.index.growth.in_use())
        return key_index.items_of(buckets)

    def remove(self, keys: Any) -> int:
        """Forget these keys; how many there were. Between steps, on the thread that trains."""
        return self.upkeep.remove(np.asarray(keys, np.int64).reshape(-1))

    def assign(self, keys: Any, rows: Any) -> None:
        """Replace all that the table holds by these keys and rows. Slots of optimizers begin anew.

        What was in use stays in use, because servers take a table that shrinks for damage: rows without a key.
        Raises ConfigurationError; then nothing was changed.
        """
        keys, rows = self._checked(keys, rows)
        with self.upkeep.lock:
            old_keys, old_rows = self._entries()
            growth, index_growth = _growth(self.rows), _growth(self.index.buckets)
            buckets = _placed(keys, least=index_growth.in_use(), most=index_growth.capacity)
            write_first_rows(self.rows, _slices(rows, first=1))
            write_first_rows(self.index.buckets, _slices(buckets, first=0))
            in_use = max(growth.in_use(), len(keys) + 1)
            self.counts.assign([in_use, len(buckets), key_index.mask_of(len(buckets))])
            growth.refill_slots()
            self.upkeep.forget_waiting()
            self.upkeep.note_replaced(old_keys, old_rows, len(keys))
            tell_of_all(self.rows, ())
            tell_of_all(self.index.buckets, ())

    def _checked(self, keys: Any, rows: Any) -> tuple[Array, Array]:
        keys = np.asarray(keys) if len(keys) else np.empty(0, np.int64)
        rows = np.asarray(rows, self.settings.dtype.as_numpy_dtype)
        if keys.ndim != 1 or keys.dtype.kind not in "iu" or len(np.unique(keys)) != len(keys):
            raise ConfigurationError(
                f"keys are {keys.dtype}{list(keys.shape)}", hint="give a vector of different whole numbers"
            )
        if rows.shape != (len(keys), self.settings.width):
            raise ConfigurationError(
                f"rows are {list(rows.shape)} for {counted(len(keys), 'key')}",
                hint=f"give [{len(keys)}, {self.settings.width}]: a row for each key",
            )
        if len(keys) > self.settings.max_rows:
            raise ConfigurationError(
                f"{counted(len(keys), 'key')} for a table of at most {counted(self.settings.max_rows, 'row')}",
                hint="raise max_rows",
            )
        return keys.astype(np.int64), rows

    def _write_first_rows(self, numbers: tf.Tensor, keys: tf.Tensor) -> list[Any]:
        written = tf.raw_ops.ResourceScatterUpdate(
            resource=self.rows.handle, indices=numbers, updates=self.first_rows(keys)
        )
        operations = [] if written is None else [written]
        tell_of_rows(self.rows, operations, numbers)
        return operations

    def first_rows(self, keys: tf.Tensor) -> tf.Tensor:
        """What the rows of these keys begin with."""
        return tf.cast(self.settings.initial.rows(keys, self.settings.width), self.settings.dtype)


def _started(first: Array, capacity: int, growth: Growth, *, name: str, trainable: bool) -> tf.Variable:
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise ConfigurationError(
            f"a table without a fixed vocabulary is not made under {strategy}: replicas, or workers, would give keys "
            "rows at the same time, each without the others",
            hint="make the model outside of strategy.scope(), or use hotdelta.keras.Embedding; on parameter servers "
            "tf.get_embedding_variable of hotdelta.compat.v1 can be trained by several workers",
        )
    variable = _reserved(capacity, first.shape[1:], tf.as_dtype(first.dtype), name=name, trainable=trainable)
    write_first_rows(variable, iter([(0, first)]))
    growth.own(variable)
    return variable


def _reserved(
    capacity: int, row_shape: tuple[int, ...], dtype: tf.DType, *, name: str, trainable: bool
) -> tf.Variable:
    try:
        return reserve_variable(capacity, row_shape, dtype, name=name, trainable=trainable)
    except tf.errors.ResourceExhaustedError as error:
        gigabytes = capacity * math.prod(row_shape) * dtype.size / 1e9
        raise ConfigurationError(
            f"the system does not reserve {gigabytes:.0f} GB of address space for {name}",
            hint="lower max_rows, or allow it: sysctl vm.overcommit_memory=1",
        ) from error


def _growth(variable: tf.Variable) -> Growth:
    growth = growth_of(variable)
    if growth is None:
        raise ValueError(f"{variable.name} does not grow")
    return growth


def _placed(keys: Array, *, least: int, most: int) -> Array:
    """The index of some keys, which have the rows from 1 on, with as many buckets as it needs."""
    count = max(least, math.ceil(len(keys) / (PLACES * _BULK_LOAD)))
    while True:
        try:
            return key_index.place_keys(keys, np.arange(1, len(keys) + 1), min(count, most))
        except key_index.BucketsFullError as error:
            if count >= most:
                raise ConfigurationError(
                    "the index has no room for these keys", hint="raise max_rows"
                ) from error
            count += count // 4


def _slices(rows: Array, *, first: int) -> Any:
    for start in range(0, len(rows), _SLICE_ROWS):
        yield first + start, rows[start : start + _SLICE_ROWS]
