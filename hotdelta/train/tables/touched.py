"""Which rows of one table training has touched: a set of row ids, recorded in-graph and taken between steps."""

from __future__ import annotations

import threading
from typing import NoReturn, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hotdelta.errors import ConfigurationError
from hotdelta.logs import counted
from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.servers.fetching import fetch
from hotdelta.train.tables.growth import Growth

Ids = NDArray[np.int64]

_MORE_FLAGS = 4096


class AnyTouchedRows(Protocol):
    """A set of touched row ids of one table: in one place, or in one place for each shard."""

    rows: int

    @property
    def variables(self) -> tuple[tf.Variable, ...]: ...

    @property
    def is_abandoned(self) -> bool:
        """The optimizer that recorded into it records somewhere else now, or nowhere."""
        ...

    def abandon(self) -> None: ...

    def record(self, ids: tf.Tensor) -> None: ...

    def record_all(self) -> None: ...

    def take(self) -> Ids: ...

    def give_back(self, ids: Ids) -> None: ...

    def count(self) -> int: ...


class TouchedRows:
    """The set of row ids that training touched since they were last taken: one flag per row, and one for every row.

    Recording is a single operation, because a training step pays for it; taking copies one byte per row (10,000,000
    rows: 2 ms). A second level of flags for blocks of rows was measured: recording cost three times as much, and with
    one row in a hundred touched no block was left out.

    Any number of threads may record while one takes, and no row is lost. A recorder writes the row, then sets its
    flag; `take` reads the flags, then clears exactly those that it read as set; its caller gathers the rows after
    that. A flag set after the read is not cleared, unless it was set already; then its row was written before the
    caller gathers, and the row that it gets is the new one. Setting a flag stores one byte, so neighbours do not
    disturb each other.
    """

    can_grow = False

    def __init__(self, rows: int, *, name: str) -> None:
        if rows < 1:
            raise ConfigurationError(
                f"table {name} has {counted(rows, 'row')}", hint="a table needs at least one row"
            )
        self.rows = rows
        self.name = name
        self.is_abandoned = False
        with tf.init_scope():
            self._flags = _flags([rows], f"{name}_touched_rows", can_grow=self.can_grow)
            self._all = _flags([], f"{name}_touched_all")
            # Captured by graphs, not made in them: a constant made under control dependencies would wait in place of
            # the operation that it feeds.
            self._one = tf.constant(1, tf.int8)
        self._taking = threading.Lock()

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        return (self._flags, self._all)

    def abandon(self) -> None:
        """Nobody records into it any more, from the next trace on."""
        self.is_abandoned = True

    def record(self, ids: tf.Tensor) -> None:
        """Adds `ids` (any integer dtype and shape), in a graph or eagerly.

        In a graph, call it under `tf.control_dependencies` of the operations that wrote the rows: automatic control
        dependencies do not order operations on different variables.
        """
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int64)
        tf.raw_ops.ResourceScatterUpdate(resource=self._flags.handle, indices=ids, updates=self._one)

    def record_all(self) -> None:
        """Adds every row, in a graph or eagerly, at the cost of one flag."""
        tf.raw_ops.AssignVariableOp(resource=self._all.handle, value=self._one)

    def take(self) -> Ids:
        """Removes the ids that are in the set now and returns them, sorted and unique.

        The caller gathers the rows afterwards, never before. Not for use in a graph.
        """
        with self._taking:
            is_all = bool(fetch(self._all.read_value()))
            if is_all:
                self._all.assign(0)
            ids = self._flagged()
            tf.raw_ops.ResourceScatterUpdate(resource=self._flags.handle, indices=ids, updates=np.int8(0))
        return np.arange(self.rows, dtype=np.int64) if is_all else ids

    def give_back(self, ids: Ids) -> None:
        """Adds ids that were taken but could not be saved."""
        if ids.size and not 0 <= ids.min() <= ids.max() < self.rows:
            self._refuse(int(ids.max() if ids.min() >= 0 else ids.min()))
        if ids.size == self.rows:
            self.record_all()
        else:
            self.record(tf.constant(ids, tf.int64))

    def count(self) -> int:
        """How many ids are in the set; costs what `take` costs."""
        return self.rows if fetch(self._all.read_value()) else int(self._flagged().size)

    def _flagged(self) -> Ids:
        flags = fetch(self._flags.read_value())
        ids: Ids = np.flatnonzero(flags.view(np.bool_))
        return ids

    def _refuse(self, bad_id: int) -> NoReturn:
        raise ConfigurationError(
            f"row {bad_id} was recorded for table {self.name}, which has {counted(self.rows, 'row')}",
            hint="record only ids that the training step wrote",
        )


class GrowingTouchedRows(TouchedRows):
    """The same for a table that grows: flags for somewhat more rows than are in use, and one for all rows beyond.

    More flags are made when rows are taken. Whoever records at that moment may find none: when the rows that were
    taken are given back, because of that or of anything else, all rows count as touched.
    """

    can_grow = True

    def __init__(self, growth: Growth, *, name: str) -> None:
        self._growth = growth
        self._has_grown = False
        super().__init__(_flags_for(growth.in_use()), name=name)

    def record(self, ids: tf.Tensor) -> None:
        beyond = tf.cast(tf.raw_ops.VariableShape(input=self._flags.handle)[0] - 1, ids.dtype)
        super().record(tf.minimum(ids, beyond))

    def take(self) -> Ids:
        in_use, beyond = self._growth.in_use(), self.rows - 1
        ids = super().take()
        self._has_grown = in_use > beyond
        if self._has_grown:
            self.rows = _flags_for(in_use)
            self._flags.assign(tf.zeros([self.rows], tf.int8))
        return self._known(ids, in_use, beyond)

    def give_back(self, ids: Ids) -> None:
        if self._has_grown:
            self.record_all()
        else:
            super().give_back(ids)

    def count(self) -> int:
        in_use = self._growth.in_use()
        if fetch(self._all.read_value()):
            return in_use
        return int(self._known(self._flagged(), in_use, self.rows - 1).size)

    def fit(self) -> None:
        """Make flags for all rows that are in use. Nobody has recorded anything yet."""
        self.rows = _flags_for(self._growth.in_use())
        self._flags.assign(tf.zeros([self.rows], tf.int8))

    def _known(self, ids: Ids, in_use: int, beyond: int) -> Ids:
        """The ids of flags as those of rows: the last flag stands for all rows from there on."""
        rows = ids[ids < min(in_use, beyond)]
        if len(ids) and ids[-1] >= beyond:
            rows = np.concatenate([rows, np.arange(beyond, in_use, dtype=np.int64)])
        return rows


def _flags_for(rows: int) -> int:
    return 2 * rows + _MORE_FLAGS


def _flags(shape: list[int], name: str, *, can_grow: bool = False) -> tf.Variable:
    """Bytes, not booleans: scattering one value into them takes half the time.

    Not made by tf.Variable, which under a tf.distribute strategy would make one copy for each device.
    """
    known = tf.TensorShape([None]) if can_grow else None
    return ResourceVariable(tf.zeros(shape, tf.int8), trainable=False, name=name, shape=known)
