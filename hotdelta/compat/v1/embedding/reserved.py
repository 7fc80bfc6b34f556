"""Variables of a graph that reserve room for all the rows that they may ever have, and what is private to a table.

Private variables are in no collection: no Saver may save them, and they are initialized with the variable they are of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from hotdelta.compat.v1.graph.saved_variables import on_device_of
from hotdelta.tensorflow_internals import ResourceVariable, run_before
from hotdelta.train.tables.growth import reserved

v1 = tf.compat.v1


class ReservedVariable(ResourceVariable):
    """Its shape is that of the room. Initializing it writes the first rows, and touches no other memory."""

    def __init__(
        self,
        *,
        capacity: int,
        first_row: npt.NDArray[Any],
        first_count: int = 1,
        name: str,
        collections: Collection[str] = (v1.GraphKeys.GLOBAL_VARIABLES,),
        trainable: bool = False,
    ) -> None:
        """`name` is that in the graph, whatever scope is open. `first_row`: what the first rows begin with."""
        dtype = tf.as_dtype(first_row.dtype)
        with v1.name_scope(None), tf.control_dependencies(None):
            super().__init__(
                lambda: reserved(capacity, first_row.shape, dtype),
                trainable=trainable,
                collections=list(collections),
                name=name,
            )
            with (
                v1.name_scope(f"{self.op.name}/"),
                on_device_of(self),
                tf.control_dependencies([super().initializer]),
            ):
                self._begin = tf.raw_ops.ResourceScatterUpdate(
                    resource=self.handle,
                    indices=tf.range(first_count, dtype=tf.int64),
                    updates=tf.broadcast_to(first_row, [first_count, *first_row.shape]),
                    name="Begin",
                )

    @property
    def initializer(self) -> tf.Operation:
        return self._begin

    def begin_with(self, variables: Collection[Any]) -> None:
        """Whoever initializes it initializes these."""
        for variable in variables:
            run_before(self._begin, variable.initializer)


@contextmanager
def private_variables(owner: str) -> Iterator[list[Any]]:
    """What is made inside is in no collection afterwards, but in this list.

    Its names are those of the owner: the workers of a cluster reach it by them, whatever else their graphs have.
    """
    made: list[Any] = []
    collection = v1.get_default_graph().get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
    before = len(collection)
    with v1.name_scope(f"{owner}_private/"), tf.control_dependencies(None):
        yield made
    made.extend(collection[before:])
    del collection[before:]


def kept_in(graph: Any, name: str) -> dict[str, Any]:
    """What a graph keeps under this name: a dictionary beside it would keep every graph."""
    if not hasattr(graph, name):
        setattr(graph, name, {})
    found: dict[str, Any] = getattr(graph, name)
    return found
