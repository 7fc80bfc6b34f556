"""The rows of one variable as the training thread reads and writes them between two steps, outside of every graph.

In TensorFlow 2 that is done at once. Where a Session runs the graph, operations of that graph do it: whoever makes them
gives them to the variable (`reach_through`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.train.tables.key_upkeep import Ids

Array = npt.NDArray[Any]

_CELLS = "_hotdelta_cells"


class Cells(Protocol):
    def value(self) -> Array:
        """All of it; for variables of a few numbers."""
        ...

    def assign(self, value: Any) -> None:
        """The same."""
        ...

    def gather(self, ids: Ids) -> Array: ...

    def write(self, ids: Ids, rows: Array) -> None: ...

    def write_at(self, places: Ids, values: Array) -> None:
        """Single numbers; `places`: [number, axes]."""
        ...


class EagerCells:
    def __init__(self, variable: tf.Variable) -> None:
        self._variable = variable

    def value(self) -> Array:
        return np.asarray(self._variable.numpy())

    def assign(self, value: Any) -> None:
        self._variable.assign(value)

    def gather(self, ids: Ids) -> Array:
        with tf.device("CPU:0"):
            handle, dtype = self._variable.handle, self._variable.dtype
            return np.asarray(tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=dtype))

    def write(self, ids: Ids, rows: Array) -> None:
        tf.raw_ops.ResourceScatterUpdate(resource=self._variable.handle, indices=ids, updates=rows)

    def write_at(self, places: Ids, values: Array) -> None:
        tf.raw_ops.ResourceScatterNdUpdate(ref=self._variable.handle, indices=places, updates=values)


def cells_of(variable: tf.Variable) -> Cells:
    found: Cells | None = vars(variable).get(_CELLS)
    return EagerCells(variable) if found is None else found


def reach_through(variable: tf.Variable, cells: Cells) -> None:
    """From now on `cells_of` gives these."""
    setattr(variable, _CELLS, cells)


def slice_of(variable: tf.Variable, first: int, end: int) -> Array:
    """A private copy of these rows."""
    return cells_of(variable).gather(np.arange(first, end, dtype=np.int64))
