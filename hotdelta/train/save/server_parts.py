"""Parameter servers write the rows that they hold to files of their own: SaveV2, run on the server.

Each file is a part of a bundle, under a temporary name that is never used twice: a server that went on writing after
its coordinator was killed must not write over a part of the next one.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.bundle.parts import Piece
from hotdelta.chain.format import names
from hotdelta.errors import CommitError
from hotdelta.train.servers.fetching import fetch, here
from hotdelta.train.servers.threads import on_each_server
from hotdelta.train.tables.sharded import asking_servers

# The rows of a full are copied in the memory of the server while they are written; so many bytes at a time, or one
# variable.
PART_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RowsToWrite:
    """Consecutive rows of the tensor `name`, from its `first`-th on, on a server; `read` gets them there."""

    server: str
    role: str
    name: str
    first: int
    count: int
    nbytes: int
    read: Callable[[], tf.Tensor]

    @property
    def part_name(self) -> str:
        """A server may hold several shards of one table."""
        return f"{self.first}:{self.name}"


@dataclass(frozen=True, slots=True)
class ServerPart:
    """One file that one server writes, `<directory>/.tmp-<prefix>`."""

    directory: Path
    prefix: str
    rows: tuple[RowsToWrite, ...]

    @property
    def server(self) -> str:
        return self.rows[0].server

    @property
    def role(self) -> str:
        return self.rows[0].role

    def write(self) -> None:
        """Raises CommitError when the server is gone or its disk does not take it."""
        path = self.directory / f"{names.TEMPORARY_PREFIX}{self.prefix}"
        with _writing(self.server), tf.device(self.server):
            tensors = [item.read() for item in self.rows]
            save = _saving(tuple(tensor.dtype for tensor in tensors))
            fetch(save(here(str(path)), here([item.part_name for item in self.rows]), *tensors))


def plan_parts(directory: Path, stem: str, rows: Iterable[RowsToWrite]) -> list[ServerPart]:
    """One file for each server and role, or several where they are large."""

    def owner(item: RowsToWrite) -> tuple[str, str]:
        return item.server, item.role

    groups = [
        batch
        for _, group in itertools.groupby(sorted(rows, key=owner), key=owner)
        for batch in _batches(list(group))
    ]
    return [
        ServerPart(directory.absolute(), f"{stem}.part-{number}", group)
        for number, group in enumerate(groups)
    ]


def joined_pieces(parts: Sequence[ServerPart]) -> dict[str, list[Piece]]:
    """How the parts make up each tensor, when a part of the coordinator's own comes before them."""
    found: dict[str, list[tuple[int, Piece]]] = {}
    for number, part in enumerate(parts, start=1):
        for item in part.rows:
            found.setdefault(item.name, []).append((item.first, Piece(number, item.part_name)))
    return {
        name: [piece for _, piece in sorted(pieces, key=lambda pair: pair[0])]
        for name, pieces in found.items()
    }


def unused_stem(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def write_parts(parts: Sequence[ServerPart]) -> None:
    """All servers at once, each one file after the other. Raises CommitError."""
    by_server: dict[str, list[ServerPart]] = {}
    for part in parts:
        by_server.setdefault(part.server, []).append(part)
    on_each_server({server: functools.partial(_write_all, mine) for server, mine in by_server.items()})


def _write_all(parts: Sequence[ServerPart]) -> None:
    for part in parts:
        part.write()


def _batches(rows: Sequence[RowsToWrite]) -> Iterator[tuple[RowsToWrite, ...]]:
    batch: list[RowsToWrite] = []
    for item in rows:
        if batch and sum(held.nbytes for held in batch) + item.nbytes > PART_BYTES:
            yield tuple(batch)
            batch = []
        batch.append(item)
    yield tuple(batch)


@functools.cache
def _saving(dtypes: tuple[tf.DType, ...]) -> Any:
    """A function that ends when the file is written: SaveV2 by itself is only queued on its server.

    A concrete one: a tf.function that fails to read its arguments, because their server is gone, keeps its lock, and
    whoever calls it next waits for ever.
    """
    signature = [tf.TensorSpec([], tf.string), tf.TensorSpec([len(dtypes)], tf.string)]
    signature += [tf.TensorSpec(None, dtype) for dtype in dtypes]

    @tf.function(input_signature=signature)
    def save(prefix: tf.Tensor, tensor_names: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
        whole = [""] * len(tensors)
        written = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=tensor_names, shape_and_slices=whole, tensors=tensors
        )
        with tf.control_dependencies([written]):
            return tf.identity(prefix)

    return save.get_concrete_function()


@contextmanager
def _writing(server: str) -> Iterator[None]:
    with asking_servers(server):
        try:
            yield
        except tf.errors.UnavailableError:
            raise
        except tf.errors.OpError as error:
            raise CommitError(
                f"parameter server {server} could not write its rows: {error.message.splitlines()[0]}",
                hint="look at its disk; the rows will be in the next save",
            ) from error
