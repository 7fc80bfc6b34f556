"""Writes a full checkpoint with TensorFlow's own SaveV2, each variable on its own device: a parameter server writes
its own data files. What comes out is what tf.train.Saver writes and reads, not committed yet.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain import names
from hotdelta.chain.bundle import PreparedBundle
from hotdelta.chain.digest import digest_file
from hotdelta.chain.manifest import FileRecord
from hotdelta.chain.position import Node
from hotdelta.chain.write_failure import translated
from hotdelta.compat.v1.saved_variables import Part, SavedVariable
from hotdelta.errors import CommitError
from hotdelta.train.delta_files import state_tensors

IN_PROGRESS = f"{names.FULL_STEM}in-progress"
META_SUFFIX = ".meta"


class FullBundleOperations:
    """The operations that save every variable: one SaveV2 for each device and role, and one that merges."""

    def __init__(self, saved: Sequence[SavedVariable], role_of: Mapping[str, str]) -> None:
        self._prefix = tf.compat.v1.placeholder(tf.string, [])
        self._state = {
            names.IDENTITY_TENSOR: tf.compat.v1.placeholder(tf.int64, [None]),
            names.STEP_TENSOR: tf.compat.v1.placeholder(tf.int64, []),
            names.TRAINER_STATE_TENSOR: tf.compat.v1.placeholder(tf.uint8, [None]),
        }
        shards = _shards(saved, role_of)
        self._roles = [role for _, role in shards]
        shard_prefixes = [
            tf.strings.join([self._prefix, f".part-{number:05d}"]) for number in range(len(shards))
        ]
        written = [
            self._save(prefix, device, parts, self._state if number == 0 else {})
            for number, (prefix, ((device, _), parts)) in enumerate(
                zip(shard_prefixes, shards.items(), strict=True)
            )
        ]
        with tf.control_dependencies(written), tf.device("CPU:0"):
            self._merge = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=shard_prefixes, destination_prefix=self._prefix, delete_old_dirs=False
            )

    def write(
        self, session: Any, run_dir: Path, *, node: Node, parent: Node | None, step: int, trainer_state: bytes
    ) -> PreparedBundle:
        """Durable under temporary names. Raises CommitError; a failed SaveV2 may leave files for the next sweep."""
        stem = names.TEMPORARY_PREFIX + IN_PROGRESS
        values = state_tensors(node, parent, step)
        feeds: dict[Any, Any] = {self._state[name]: value for name, value in values.items()}
        feeds[self._state[names.TRAINER_STATE_TENSOR]] = np.frombuffer(trainer_state, np.uint8)
        feeds[self._prefix] = str(run_dir.absolute() / stem)
        try:
            session.run(self._merge, feeds)
        except (
            tf.errors.ResourceExhaustedError,
            tf.errors.PermissionDeniedError,
            tf.errors.NotFoundError,
        ) as error:
            raise CommitError(f"the full was not written: {error.message}", path=run_dir) from error
        roles = [
            (names.data_name(IN_PROGRESS, number, len(self._roles)), role)
            for number, role in enumerate(self._roles)
        ]
        return _prepared(run_dir, [*roles, (names.index_name(IN_PROGRESS), names.ROLE_INDEX)])

    def _save(
        self,
        prefix: tf.Tensor,
        device: str,
        parts: Sequence[tuple[SavedVariable, Part]],
        state: Mapping[str, tf.Tensor],
    ) -> tf.Operation:
        with tf.device(_cpu(device)):
            return tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=[*(saved.key for saved, _ in parts), *state],
                shape_and_slices=[*(part.slice_spec for _, part in parts), *([""] * len(state))],
                tensors=[*(part.variable.read_value() for _, part in parts), *state.values()],
            )


def add_file(prepared: PreparedBundle, suffix: str, content: bytes) -> PreparedBundle:
    """The same bundle with one more file of the training role, deleted with it one day."""
    name = prepared.prefix + suffix
    temporary = names.TEMPORARY_PREFIX + name
    with translated(f"writing {name}", prepared.directory):
        (prepared.directory / temporary).write_bytes(content)
        record = _synced(prepared.directory / temporary, name, names.ROLE_TRAINING)
    return PreparedBundle(
        prepared.directory,
        prepared.prefix,
        (*prepared.files, record),
        {**prepared.temporary_names, name: temporary},
    )


def _shards(
    saved: Sequence[SavedVariable], role_of: Mapping[str, str]
) -> dict[tuple[str, str], list[tuple[SavedVariable, Part]]]:
    """By device and role, a serving one first: a serving replica does not read the others."""
    shards: dict[tuple[str, str], list[tuple[SavedVariable, Part]]] = defaultdict(list)
    for item in sorted(saved, key=lambda item: role_of[item.key] != names.ROLE_SERVING):
        for part in item.parts:
            shards[part.variable.device, role_of[item.key]].append((item, part))
    return dict(shards)


def _cpu(device: str) -> Any:
    spec = tf.DeviceSpec.from_string(device or "")
    return spec.replace(device_type="CPU", device_index=0).to_string()


def _prepared(run_dir: Path, files: Sequence[tuple[str, str]]) -> PreparedBundle:
    with translated("writing a full", run_dir):
        records = tuple(
            _synced(run_dir / f"{names.TEMPORARY_PREFIX}{name}", name, role) for name, role in files
        )
    temporary_names = {record.name: f"{names.TEMPORARY_PREFIX}{record.name}" for record in records}
    return PreparedBundle(run_dir, IN_PROGRESS, records, temporary_names)


def _synced(path: Path, name: str, role: str) -> FileRecord:
    """SaveV2 never calls fsync."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        size, digest = digest_file(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(name, size, digest, role)
