"""Tables whose rows are split over parameter servers (ShardedVariable): read, written and recorded as one table.

Rows keep their ids: shard k holds the rows after those of the shards before it. So a chain knows nothing of shards,
and a job goes on with any number of them. Rows travel in slices, because one message of gRPC cannot exceed 2 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from hotdelta.errors import CommitError
from hotdelta.tensorflow_internals import ShardedVariable
from hotdelta.train.servers.addresses import connected_server
from hotdelta.train.servers.fetching import fetch, here
from hotdelta.train.servers.patience import PATIENCE
from hotdelta.train.tables.touched import Ids, TouchedRows

Answer = TypeVar("Answer")

MESSAGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows from `first` on, which one parameter server holds."""

    first: int
    variable: tf.Variable

    @property
    def rows(self) -> int:
        return int(self.variable.shape[0])


def is_sharded(variable: Any) -> bool:
    return isinstance(variable, ShardedVariable)


def is_trainable(variable: Any) -> bool:
    return bool(parts_of(variable)[0].trainable)


def parts_of(variable: Any) -> tuple[tf.Variable, ...]:
    """Of a sharded variable its shards; any other is the only part of itself."""
    return tuple(variable.variables) if is_sharded(variable) else (variable,)


def shards_of(variable: Any) -> tuple[Shard, ...]:
    """A variable that is not sharded is the only shard of itself."""
    first, found = 0, []
    for part in parts_of(variable):
        found.append(Shard(first, part))
        first += found[-1].rows
    return tuple(found)


def is_remote(variable: tf.Variable) -> bool:
    """Held by another process; its operations must run there."""
    return "/job:" in variable.device and "/job:localhost" not in variable.device


@contextmanager
def asking_servers(server: str) -> Iterator[None]:
    """Translates what TensorFlow raises when a parameter server is gone, and says when one does not answer."""
    try:
        with PATIENCE.waiting_for(partial(connected_server, server)):
            yield
    except tf.errors.OpError as error:
        raise CommitError(
            f"a parameter server does not answer: {error.message.splitlines()[0]}",
            hint="restart the parameter server and the coordinator: training goes on from the newest commit",
        ) from error


def gather_sharded(variable: Any, ids: Ids) -> np.ndarray:
    """A private copy of the given rows, in the order of `ids`."""
    rows = np.empty((len(ids), *variable.shape[1:]), variable.dtype.as_numpy_dtype)
    for shard in shards_of(variable):
        places = np.flatnonzero((ids >= shard.first) & (ids < shard.first + shard.rows))
        for part in _messages(places, rows):
            rows[part] = _gather(shard.variable, ids[part] - shard.first)
    return rows


def read_sharded(variable: Any) -> np.ndarray:
    return gather_sharded(variable, np.arange(variable.shape[0], dtype=np.int64))


def read_remote(variable: tf.Variable) -> np.ndarray:
    with asking_servers(variable.device):
        return fetch(variable.read_value())


def write_sharded(variable: Any, values: np.ndarray) -> None:
    ids = np.arange(len(values), dtype=np.int64)
    for shard in shards_of(variable):
        for part in _messages(ids[shard.first : shard.first + shard.rows], values):
            with asking_servers(shard.variable.device), tf.device(shard.variable.device):
                write = _writing(shard.variable.dtype)
                fetch(write(shard.variable.handle, here(part - shard.first), here(values[part])))


def write_remote(variable: tf.Variable, values: np.ndarray) -> None:
    with asking_servers(variable.device), tf.device(variable.device):
        fetch(_assigning(variable.dtype)(variable.handle, here(values)))


def _gather(variable: tf.Variable, ids: Ids) -> np.ndarray:
    with asking_servers(variable.device), tf.device(variable.device):
        rows = tf.raw_ops.ResourceGather(resource=variable.handle, indices=here(ids), dtype=variable.dtype)
        return fetch(rows)


@cache
def _assigning(dtype: tf.DType) -> Any:
    """A function that ends when the value is written: an operation by itself is only queued on its server.

    A concrete one, see server_parts.
    """

    @tf.function(input_signature=[tf.TensorSpec([], tf.resource), tf.TensorSpec(None, dtype)])
    def assign(handle: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        written = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        with tf.control_dependencies([written]):
            return tf.rank(value)

    return assign.get_concrete_function()


@cache
def _writing(dtype: tf.DType) -> Any:
    """The same for rows."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([], tf.resource),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec(None, dtype),
        ]
    )
    def write(handle: tf.Tensor, ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        written = tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=ids, updates=rows)
        with tf.control_dependencies([written]):
            return tf.size(ids)

    return write.get_concrete_function()


def _messages(places: Ids, rows: np.ndarray) -> Iterator[Ids]:
    """`places` in parts of which the rows fit into one message."""
    for first, end in row_ranges(len(places), rows_within(MESSAGE_BYTES, rows.nbytes // max(1, len(rows)))):
        yield places[first:end]


class ShardedTouchedRows:
    """`TouchedRows` for a sharded table: the flags of each shard are on the server that holds its rows.

    Workers record where they write, so the coordinator asks for nothing but the flags and the rows that they name.
    The rules of `TouchedRows` hold for each shard.
    """

    def __init__(self, variable: Any, *, name: str) -> None:
        self.rows = int(variable.shape[0])
        self.name = name
        self.shards = shards_of(variable)
        self.parts: list[TouchedRows] = []
        for number, shard in enumerate(self.shards):
            with tf.device(shard.variable.device):
                self.parts.append(TouchedRows(shard.rows, name=f"{name}_{number}"))

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        return tuple(variable for part in self.parts for variable in part.variables)

    @property
    def is_abandoned(self) -> bool:
        return any(part.is_abandoned for part in self.parts)

    def abandon(self) -> None:
        for part in self.parts:
            part.abandon()

    def record(self, ids: tf.Tensor) -> None:
        """Adds ids of rows of the table, in a graph (after the writes, as `TouchedRows.record`) or eagerly."""
        ids = tf.reshape(tf.cast(ids, tf.int64), [-1])
        for shard, part in zip(self.shards, self.parts, strict=True):
            is_here = tf.logical_and(ids >= shard.first, ids < shard.first + shard.rows)
            part.record(tf.boolean_mask(ids, is_here) - shard.first)

    def record_all(self) -> None:
        self._each(TouchedRows.record_all)

    def take(self) -> Ids:
        """As `TouchedRows.take`: the caller gathers afterwards, and no row that a worker writes meanwhile is lost."""
        taken = zip(self.shards, self._each(TouchedRows.take), strict=True)
        return np.concatenate([ids + shard.first for shard, ids in taken])

    def give_back(self, ids: Ids) -> None:
        for shard, part in zip(self.shards, self.parts, strict=True):
            first, end = np.searchsorted(ids, [shard.first, shard.first + shard.rows])
            with asking_servers(shard.variable.device):
                part.give_back(ids[first:end] - shard.first)

    def count(self) -> int:
        return sum(self._each(TouchedRows.count))

    def _each(self, ask: Callable[[TouchedRows], Answer]) -> list[Answer]:
        found = []
        for shard, part in zip(self.shards, self.parts, strict=True):
            with asking_servers(shard.variable.device):
                found.append(ask(part))
        return found
