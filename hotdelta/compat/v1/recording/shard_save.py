"""Saves tensors with TensorFlow's own SaveV2, each on its own device: a parameter server writes its own data files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.bundle.parts import Piece, adopt_part
from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names


@dataclass(frozen=True, slots=True, eq=False)
class ShardTensor:
    """A tensor of a bundle, or some of its rows, and the device whose process writes it."""

    name: str
    device: str
    role: str
    value: tf.Tensor


class ShardSave:
    """One SaveV2 for each device and role. Rows of one tensor are saved apart, and `pieces` says how to join them.

    The parts of a bundle that it writes are numbered from `first_part`.
    """

    def __init__(self, tensors: Sequence[ShardTensor], *, first_part: int) -> None:
        self._prefix = tf.compat.v1.placeholder(tf.string, [])
        places = list(dict.fromkeys((tensor.device, tensor.role) for tensor in tensors))
        shards: dict[tuple[str, str], list[tuple[str, tf.Tensor]]] = defaultdict(list)
        pieces: dict[str, list[Piece]] = defaultdict(list)
        for tensor in tensors:
            place = (tensor.device, tensor.role)
            name = f"{tensor.name} {len(pieces[tensor.name])}"
            pieces[tensor.name].append(Piece(first_part + places.index(place), name))
            shards[place].append((name, tensor.value))
        self.pieces: Mapping[str, Sequence[Piece]] = pieces
        self._roles = [role for _, role in places]
        self._operations = [
            self._operation(number, place[0], shards[place]) for number, place in enumerate(places)
        ]

    def run(
        self, session: Any, directory: Path, stem: str, *, feeds: Mapping[Any, Any], options: Any
    ) -> None:
        """Raises what TensorFlow raises."""
        prefix = str(directory.absolute() / f"{names.TEMPORARY_PREFIX}{stem}")
        session.run(self._operations, {self._prefix: prefix, **feeds}, options=options)

    def adopt(self, directory: Path, stem: str, disk: Disk) -> list[PreparedBundle]:
        """What `run` wrote, durable. Raises CommitError."""
        return [
            adopt_part(directory, stem + _part_suffix(number), role=role, disk=disk)
            for number, role in enumerate(self._roles)
        ]

    def _operation(self, number: int, device: str, tensors: Sequence[tuple[str, tf.Tensor]]) -> tf.Operation:
        with tf.device(device):
            return tf.raw_ops.SaveV2(
                prefix=tf.strings.join([self._prefix, _part_suffix(number)]),
                tensor_names=[name for name, _ in tensors],
                shape_and_slices=[""] * len(tensors),
                tensors=[value for _, value in tensors],
                name="write_shard",
            )


def _part_suffix(number: int) -> str:
    return f".part-{number:05d}"
