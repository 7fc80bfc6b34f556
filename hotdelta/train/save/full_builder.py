"""Writes a full checkpoint while training goes on, in chunks, without a second copy of any table in memory.

Chunks are copied while rows change under them, so what is copied first is a blur. Every cut that is taken meanwhile is
written over it, in order; a row that changed after its chunk was copied is in one of those cuts, the last of which
(the closing cut) is the position of the full. After the last one the file equals the trainer at that cut, bit for bit.
Tables whose rows parameter servers write are copied by them (server_full); all else is copied here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hotdelta.chain.bundle.delta_tensors import SHARD_ROLES, shard_of, state_tensors
from hotdelta.chain.bundle.row_memory import rows_within
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.position import IDENTITY_LENGTH, Node
from hotdelta.errors import CommitError
from hotdelta.train.model.variables import ModelVariables, RowVariable
from hotdelta.train.rows.cut import Cut
from hotdelta.train.rows.tracking import TableTracker
from hotdelta.train.save.server_full import ServerCopy, shard_to_write
from hotdelta.train.save.server_parts import unused_stem
from hotdelta.train.tables.row_values import Array, Ids
from hotdelta.train.tables.server_rows import ServerRows

CHUNK_BYTES = 4 * 1024 * 1024
TRAINER_STATE_ROOM_BYTES = 64 * 1024


class FullBuilder:
    """One full checkpoint in the making.

    `copy` and `finish` run on the full-writer thread, in this order; `overlay` is called by the training thread with
    every cut from the start of `copy` to the closing cut.
    """

    def __init__(
        self,
        directory: Path,
        prefix: str,
        *,
        variables: ModelVariables,
        trackers: Mapping[str, TableTracker],
        on_servers: frozenset[str] = frozenset(),
        trainer_state_bytes: int,
        disk: Disk,
    ) -> None:
        """`on_servers`: keys of the row variables that parameter servers write."""
        self.prefix = prefix
        self._trackers = trackers
        self._on_servers = on_servers
        self._state_room = trainer_state_bytes * 2 + TRAINER_STATE_ROOM_BYTES
        self._overlays: deque[Cut] = deque()
        # Rows that came into use after the layout was fixed are appended at the end.
        self._first_rows = {item.key: item.rows for item in variables.row_variables}
        self._later_rows: dict[str, list[tuple[Ids, Array]]] = {}
        self._is_abandoned = threading.Event()
        stem = unused_stem(prefix) if on_servers else prefix
        self._server_copy = ServerCopy(directory, stem, disk=disk)
        layouts = [
            item
            for item in _layouts(variables, self._first_rows, self._state_room)
            if item.name not in on_servers
        ]
        own_prefix = f"{stem}.own" if on_servers else prefix
        self._writer = BundleWriter(directory, own_prefix, layouts, shard_roles=SHARD_ROLES, disk=disk)

    def overlay(self, cut: Cut) -> None:
        self._overlays.append(cut)

    def abandon(self) -> None:
        """Stop copying as soon as possible."""
        self._is_abandoned.set()

    def discard(self) -> None:
        """Remove the files. Not while another thread is copying or finishing."""
        self._writer.abandon()
        if self._on_servers:
            self._server_copy.discard()

    def copy(self) -> None:
        """Copy every row once, writing the cuts that arrive meanwhile over what is copied already."""
        if self._on_servers:
            self._copy_on_servers()
        for tracker in self._trackers.values():
            for item in tracker.table.row_variables:
                if item.key not in self._on_servers:
                    self._copy_one(tracker, item)

    def _copy_on_servers(self) -> None:
        self._server_copy.write(
            shard_to_write(item, shard)
            for tracker in self._trackers.values()
            for item in tracker.table.row_variables
            for shard in tracker.shards_on_servers(item)
        )

    def _copy_one(self, tracker: TableTracker, item: RowVariable) -> None:
        for first, count in _chunks(item, self._first_rows[item.key]):
            if self._is_abandoned.is_set():
                return
            rows = tracker.read_slice(item, first, count)
            self._writer.write_rows(item.key, first, rows)
            self._write_overlays()

    def finish(
        self, *, values: Mapping[str, Array], closing: Cut, node: Node, parent: Node | None
    ) -> PreparedBundle:
        """Write what is left of the closing cut and make the files durable. `values` are as of that cut."""
        self._write_overlays()
        if self._on_servers and parent is None:
            # There is no delta of this cut from which its rows could have come.
            self._server_copy.patch_from_servers(closing.blocks)
        for block in closing.blocks:
            if block.rows_in_use is not None:
                self._append(block.variable.key, block.rows_in_use)
        for key, value in values.items():
            self._writer.write(key, value)
        for name, value in state_tensors(node, parent, closing.step).items():
            self._writer.write(name, value)
        self._writer.write(names.TRAINER_STATE_TENSOR, self._padded(closing.trainer_state))
        own = self._writer.finish()
        return self._server_copy.finish(own, self.prefix) if self._on_servers else own

    def _padded(self, trainer_state: bytes) -> Array:
        """JSON may end in blanks, and its length was not known when the layout was fixed."""
        if len(trainer_state) > self._state_room:
            raise CommitError(
                "the registered trainer state grew too fast for this full; the next one has room"
            )
        return np.frombuffer(trainer_state.ljust(self._state_room), np.uint8)

    def _write_overlays(self) -> None:
        while self._overlays:
            cut = self._overlays.popleft()
            for block in cut.blocks:
                # What is still on servers comes once more, when it is in a file.
                if len(block.ids) and not isinstance(block.rows, ServerRows):
                    self._patch(block.variable.key, block.ids, block.rows)

    def _patch(self, key: str, ids: Ids, rows: Array) -> None:
        if key in self._on_servers:
            self._server_copy.patch_rows(key, ids, rows)
            return
        known = int(np.searchsorted(ids, self._first_rows[key]))
        self._writer.patch_rows(key, ids[:known], rows[:known])
        if known < len(ids):
            self._later_rows.setdefault(key, []).append((ids[known:], rows[known:]))

    def _append(self, key: str, rows_in_use: int) -> None:
        """The rows from the end of the layout to the last one that is in use. Each is in a cut since then."""
        first, later = self._first_rows[key], self._later_rows.get(key, [])
        if rows_in_use == first:
            return
        all_ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in later)])
        missing = np.setdiff1d(np.arange(first, rows_in_use), all_ids)
        if len(missing):
            raise CommitError(f"row {missing[0]} of {key!r} is in no cut since it came into use")
        rows = np.empty((rows_in_use - first, *later[0][1].shape[1:]), later[0][1].dtype)
        for ids, new in later:
            rows[ids - first] = new
        self._writer.append_rows(key, rows)


def _chunks(item: RowVariable, rows: int) -> Iterator[tuple[int, int]]:
    chunk = rows_within(CHUNK_BYTES, item.nbytes // max(1, item.rows))
    for first in range(0, rows, chunk):
        yield first, min(chunk, rows - first)


def _layouts(variables: ModelVariables, rows: Mapping[str, int], state_room: int) -> Iterator[TensorLayout]:
    for item in variables.everything():
        shape = (rows[item.key], *item.shape[1:]) if item.key in rows else item.shape
        yield TensorLayout(item.key, item.dtype, shape, shard_of(item.role))
    serving = shard_of(names.ROLE_SERVING)
    yield TensorLayout(names.IDENTITY_TENSOR, "int64", (IDENTITY_LENGTH,), serving)
    yield TensorLayout(names.STEP_TENSOR, "int64", (), serving)
    yield TensorLayout(names.TRAINER_STATE_TENSOR, "uint8", (state_room,), shard_of(names.ROLE_TRAINING))
