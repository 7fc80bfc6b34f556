"""Writes a full checkpoint while training goes on, in chunks, without a second copy of any table in memory.

Chunks are copied while rows change under them, so what is copied first is a blur. Every cut that is taken meanwhile is
written over it, in order; a row that changed after its chunk was copied is in one of those cuts, the last of which
(the closing cut) is the position of the full. After the last one the file equals the trainer at that cut, bit for bit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hotdelta.chain import names
from hotdelta.chain.bundle import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.identity import IDENTITY_LENGTH
from hotdelta.chain.position import Node
from hotdelta.errors import CommitError
from hotdelta.train.cut import Cut
from hotdelta.train.delta_files import SHARD_ROLES, shard_of, state_tensors
from hotdelta.train.row_values import Array
from hotdelta.train.tracking import TableTracker
from hotdelta.train.variables import ModelVariables, RowVariable

CHUNK_BYTES = 4 * 1024 * 1024
TRAINER_STATE_ROOM_BYTES = 64 * 1024


class FullBuilder:
    """One full checkpoint in the making.

    `copy` and `finish` run on the full-writer thread, in this order; `overlay` is called by the training thread with
    every cut from the start of `copy` to the closing cut.
    """

    def __init__(
        self, directory: Path, prefix: str, *, variables: ModelVariables, trainer_state_bytes: int, disk: Disk
    ) -> None:
        self.prefix = prefix
        self._variables = variables
        self._state_room = trainer_state_bytes * 2 + TRAINER_STATE_ROOM_BYTES
        self._overlays: deque[Cut] = deque()
        self._is_abandoned = threading.Event()
        layouts = list(_layouts(variables, self._state_room))
        self._writer = BundleWriter(directory, prefix, layouts, shard_roles=SHARD_ROLES, disk=disk)

    def overlay(self, cut: Cut) -> None:
        self._overlays.append(cut)

    def abandon(self) -> None:
        """Stop copying as soon as possible."""
        self._is_abandoned.set()

    def discard(self) -> None:
        """Remove the files. Not while another thread is copying or finishing."""
        self._writer.abandon()

    def copy(self, trackers: Mapping[str, TableTracker]) -> None:
        """Copy every row once, writing the cuts that arrive meanwhile over what is copied already."""
        for tracker in trackers.values():
            for item in tracker.table.row_variables:
                self._copy_one(tracker, item)

    def _copy_one(self, tracker: TableTracker, item: RowVariable) -> None:
        for first, count in _chunks(item):
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
        for key, value in values.items():
            self._writer.write(key, value)
        for name, value in state_tensors(node, parent, closing.step).items():
            self._writer.write(name, value)
        self._writer.write(names.TRAINER_STATE_TENSOR, self._padded(closing.trainer_state))
        return self._writer.finish()

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
                if len(block.ids):
                    self._writer.patch_rows(block.variable.key, block.ids, block.rows)


def _chunks(item: RowVariable) -> Iterator[tuple[int, int]]:
    row_bytes = max(1, item.nbytes // max(1, item.rows))
    chunk = max(1, CHUNK_BYTES // row_bytes)
    for first in range(0, item.rows, chunk):
        yield first, min(chunk, item.rows - first)


def _layouts(variables: ModelVariables, state_room: int) -> Iterator[TensorLayout]:
    for item in variables.everything():
        yield TensorLayout(item.key, item.dtype, item.shape, shard_of(item.role))
    serving = shard_of(names.ROLE_SERVING)
    yield TensorLayout(names.IDENTITY_TENSOR, "int64", (IDENTITY_LENGTH,), serving)
    yield TensorLayout(names.STEP_TENSOR, "int64", (), serving)
    yield TensorLayout(names.TRAINER_STATE_TENSOR, "uint8", (state_room,), shard_of(names.ROLE_TRAINING))
