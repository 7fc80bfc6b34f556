"""The rows of the variables of a table as the training thread reads and writes them: through operations of its graph.

Made before the graph is finalized; whoever trains says in which Session they run. Many small questions take long
where a server answers them, so they can be asked at once while nobody else trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.compat.v1.graph.writers import own_operations
from hotdelta.train.tables.cells import Array, reach_through
from hotdelta.train.tables.key_upkeep import Ids

v1 = tf.compat.v1


class SessionLink:
    """The Session that holds the values of a table; None before training begins.

    `remembered`: values that are known, by the name of what reads them.
    """

    def __init__(self) -> None:
        self.session: Any = None
        self.remembered: dict[str, Array] = {}

    def run(self, fetches: Any, feeds: Mapping[Any, Any] | None = None) -> Any:
        if self.session is None:
            raise RuntimeError("no Session trains this table yet")
        return self.session.run(fetches, feeds)


class SessionCells:
    """What `cells_of` gives for one variable from now on."""

    def __init__(self, variable: Any, link: SessionLink) -> None:
        self._link = link
        handle, dtype, row = variable.handle, variable.dtype, variable.shape[1:]
        rank = variable.shape.rank
        self._value: Any = None
        self._nothing = np.empty((0, *row.as_list()), dtype.as_numpy_dtype) if rank else None
        with own_operations(), tf.device(variable.device):
            if rank < 2:
                self._value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                self._new_value = v1.placeholder(dtype, variable.shape)
                self._assign = tf.raw_ops.AssignVariableOp(resource=handle, value=self._new_value)
            if rank > 0:
                self._ids = v1.placeholder(tf.int64, [None])
                self._rows = v1.placeholder(dtype, [None, *row])
                self._gather = tf.raw_ops.ResourceGather(resource=handle, indices=self._ids, dtype=dtype)
                self._write = tf.raw_ops.ResourceScatterUpdate(
                    resource=handle, indices=self._ids, updates=self._rows
                )
            if rank == 2:
                self._places = v1.placeholder(tf.int64, [None, 2])
                self._values = v1.placeholder(dtype, [None])
                self._write_at = tf.raw_ops.ResourceScatterNdUpdate(
                    ref=handle, indices=self._places, updates=self._values
                )
        reach_through(variable, self)

    @property
    def question(self) -> Any:
        """What is fetched for `value`."""
        return self._value

    def value(self) -> Array:
        found = self._link.remembered.get(self._value.name)
        return np.asarray(self._link.run(self._value)) if found is None else found

    def assign(self, value: Any) -> None:
        self._link.remembered.pop(self._value.name, None)
        self._link.run(self._assign, {self._new_value: value})

    def gather(self, ids: Ids) -> Array:
        if not len(ids) and self._nothing is not None:
            return self._nothing.copy()
        found: Array = self._link.run(self._gather, {self._ids: ids})
        return found

    def write(self, ids: Ids, rows: Array) -> None:
        self._link.run(self._write, {self._ids: ids, self._rows: rows})

    def write_at(self, places: Ids, values: Array) -> None:
        self._link.run(self._write_at, {self._places: places, self._values: values})
