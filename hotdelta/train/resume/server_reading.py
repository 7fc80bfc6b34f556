"""Parameter servers read the rows that they hold at a resume point themselves, out of the files.

The coordinator has verified the files. A server reads the same places of them and tells the hash of what it got, under
a key that is new each time; only what has the hash of the verified bytes is written to its shard.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import tensorflow as tf

from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from hotdelta.chain.history.state_pieces import StoredRows
from hotdelta.train.model.variables import RowVariable
from hotdelta.train.servers.fetching import fetch, here, in_this_process
from hotdelta.train.servers.threads import on_each_server
from hotdelta.train.tables.row_values import Array
from hotdelta.train.tables.sharded import Shard, asking_servers, shards_of

READ_BYTES = 16 * 1024 * 1024

_BUCKETS = 2**63 - 1
# What tf.io.decode_raw does not know, read as something of the same bits.
_SAME_BITS = {tf.bfloat16: tf.uint16, tf.uint32: tf.int32, tf.uint64: tf.int64}


class ServerReading:
    """The reading of one resume, with the key of its hashes. Owned by the training thread."""

    def __init__(self) -> None:
        self._hash: Callable[[tf.Tensor], tf.Tensor] = partial(
            tf.strings.to_hash_bucket_strong,
            num_buckets=_BUCKETS,
            key=[secrets.randbits(63), secrets.randbits(63)],
        )
        self._read = _reading(self._hash)

    def load(self, item: RowVariable, stored: Sequence[StoredRows]) -> str | None:
        """Set every shard of a variable to its rows at the resume point.

        Returns why a server could not read its rows, or None; after a failure some rows may have been written.
        Raises CommitError when a server is gone.
        """
        by_server: dict[str, list[Shard]] = {}
        for shard in shards_of(item.variable):
            by_server.setdefault(shard.variable.device, []).append(shard)
        reasons = on_each_server(
            {
                server: partial(self._load_shards, server, shards, stored)
                for server, shards in by_server.items()
            }
        )
        return next((reason for reason in reasons if reason), None)

    def _load_shards(self, server: str, shards: Sequence[Shard], stored: Sequence[StoredRows]) -> str | None:
        for shard in shards:
            for rows in _pieces(shard, stored):
                with asking_servers(server), tf.device(server):
                    try:
                        is_verified = self._load_rows(shard, rows)
                    except tf.errors.UnavailableError:
                        raise
                    except tf.errors.OpError as error:
                        return f"{server}: {' '.join(error.message.split())}"
                if not is_verified:
                    return f"{server} reads something else in {rows.path}"
        return None

    def _load_rows(self, shard: Shard, rows: StoredRows) -> bool:
        """False when what the server read is not what was verified."""
        place = (rows.offset, rows.size, rows.file_bytes - rows.offset - rows.size)
        raw, found = self._read(here(str(rows.path)), here(place, tf.int64))
        if fetch(found) != self._expected(rows):
            return False
        variable = shard.variable
        write = _writing(variable.dtype, tuple(variable.shape[1:]))
        fetch(write(variable.handle, here(rows.ids - shard.first), raw))
        return True

    def _expected(self, rows: StoredRows) -> Array:
        with in_this_process():
            return fetch(self._hash(tf.constant(rows.read())))


def _pieces(shard: Shard, stored: Sequence[StoredRows]) -> Iterator[StoredRows]:
    """The rows of a shard, link by link, in parts of bounded size."""
    for rows in stored:
        mine = rows.between(shard.first, shard.first + shard.rows)
        for first, end in row_ranges(len(mine.ids), rows_within(READ_BYTES, rows.size // len(rows.ids))):
            yield mine.part(first, end)


def _reading(hash_of: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """A function that reads some bytes of a file and returns them with their hash; a concrete one, see server_parts."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([3], tf.int64)])
    def read(path: tf.Tensor, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        records = tf.data.FixedLengthRecordDataset(
            path, header_bytes=place[0], record_bytes=place[1], footer_bytes=place[2]
        )
        raw = records.get_single_element()
        return raw, hash_of(raw)

    return read.get_concrete_function()


@cache
def _writing(dtype: tf.DType, row_shape: tuple[int, ...]) -> Any:
    """A function that ends when the rows are written: an operation by itself is only queued on its server."""
    known = _SAME_BITS.get(dtype)

    @tf.function(
        input_signature=[
            tf.TensorSpec([], tf.resource),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([], tf.string),
        ]
    )
    def write(handle: tf.Tensor, ids: tf.Tensor, raw: tf.Tensor) -> tf.Tensor:
        values = tf.io.decode_raw(raw, known or dtype)
        rows = tf.reshape(tf.bitcast(values, dtype) if known else values, [-1, *row_shape])
        written = tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=ids, updates=rows)
        with tf.control_dependencies([written]):
            return tf.identity(ids[0])

    return write.get_concrete_function()
