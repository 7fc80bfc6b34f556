"""Writes a full checkpoint: what comes out is what tf.train.Saver writes and reads, not committed yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.delta_tensors import state_tensors
from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.parts import discard_parts, merge_parts
from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import FileRecord
from hotdelta.chain.format.position import Node
from hotdelta.chain.write_failure import translated
from hotdelta.compat.v1.graph.saved_variables import Part, SavedVariable, cpu_of
from hotdelta.compat.v1.graph.session_values import rows_in_use
from hotdelta.compat.v1.recording.held_keys import HeldKeys
from hotdelta.compat.v1.recording.shard_save import ShardSave, ShardTensor
from hotdelta.errors import CommitError

IN_PROGRESS = f"{names.FULL_STEM}in-progress"
META_SUFFIX = ".meta"


class FullBundleOperations:
    """The operations that save every variable on its own device."""

    def __init__(
        self, saved: Sequence[SavedVariable], role_of: Mapping[str, str], held: HeldKeys | None = None
    ) -> None:
        """`held`: what servers hold of the tables with keys, as of the cut that the full belongs to."""
        self._state = {
            names.IDENTITY_TENSOR: tf.compat.v1.placeholder(tf.int64, [None]),
            names.STEP_TENSOR: tf.compat.v1.placeholder(tf.int64, []),
            names.TRAINER_STATE_TENSOR: tf.compat.v1.placeholder(tf.uint8, [None]),
        }
        tensors = list(_tensors(saved, role_of, held))
        first = tensors[0]
        state = [ShardTensor(name, first.device, first.role, value) for name, value in self._state.items()]
        self._save = ShardSave([*tensors, *state], first_part=0)

    def write(
        self, session: Any, run_dir: Path, *, node: Node, parent: Node | None, step: int, trainer_state: bytes
    ) -> PreparedBundle:
        """Durable under temporary names. Raises CommitError; what a server still writes then is for the next sweep."""
        # The position is in the name: a server that writes for a chief that was lost harms no other save.
        prefix = f"{IN_PROGRESS}-{node.position}"
        values = state_tensors(node, parent, step)
        feeds: dict[Any, Any] = {self._state[name]: value for name, value in values.items()}
        feeds[self._state[names.TRAINER_STATE_TENSOR]] = np.frombuffer(trainer_state, np.uint8)
        disk = Disk()
        try:
            self._run(session, run_dir, prefix, feeds)
            return merge_parts(prefix, self._save.adopt(run_dir, prefix, disk), self._save.pieces, disk=disk)
        except CommitError:
            discard_parts(run_dir, f"{prefix}.", disk=disk)
            raise

    def _run(self, session: Any, run_dir: Path, prefix: str, feeds: Mapping[Any, Any]) -> None:
        """Whatever else goes wrong is for the Session: it is made anew when a server is gone."""
        try:
            self._save.run(session, run_dir, prefix, feeds=feeds, options=None)
        except (
            tf.errors.ResourceExhaustedError,
            tf.errors.PermissionDeniedError,
            tf.errors.NotFoundError,
        ) as error:
            raise CommitError(f"the full was not written: {error.message}", path=run_dir) from error


def add_file(prepared: PreparedBundle, suffix: str, content: bytes) -> PreparedBundle:
    """The same bundle with one more file of the training role, deleted with it one day."""
    name = prepared.prefix + suffix
    temporary = names.TEMPORARY_PREFIX + name
    with translated(f"writing {name}", prepared.directory):
        write_durably(Disk(), prepared.directory / temporary, content)
    record = FileRecord(name, len(content), digest_bytes(content), names.ROLE_TRAINING)
    return PreparedBundle(
        prepared.directory,
        prepared.prefix,
        (*prepared.files, record),
        {**prepared.temporary_names, name: temporary},
    )


def _tensors(
    saved: Sequence[SavedVariable], role_of: Mapping[str, str], held: HeldKeys | None
) -> Iterator[ShardTensor]:
    """A serving one first: a serving replica reads the identity, too, and no other file."""
    for item in sorted(saved, key=lambda item: role_of[item.key] != names.ROLE_SERVING):
        for part in item.parts:
            device = cpu_of(part.variable.device)
            with tf.device(device):
                yield ShardTensor(item.key, device, role_of[item.key], _value(item, part, held))


def _value(item: SavedVariable, part: Part, held: HeldKeys | None) -> tf.Tensor:
    value = None if held is None else held.value(item, part)
    if value is not None:
        return value
    rows = rows_in_use(item, part)
    return part.variable.read_value() if rows is None else rows
