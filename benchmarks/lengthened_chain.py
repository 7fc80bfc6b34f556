"""Makes a chain long without training: deltas like its newest, one after another. Needs no TensorFlow.

Nothing is flushed to the disk: 20,000 deltas are to be there in seconds, and a power cut may take them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain import (
    BundleReader,
    BundleWriter,
    Disk,
    Kind,
    Manifest,
    Node,
    Scanner,
    TensorLayout,
    directory_of,
    encode_identity,
    new_state_id,
)
from hotdelta.chain.format import names

Array = npt.NDArray[Any]


class CarelessDisk(Disk):
    """Never waits for the disk."""

    def fsync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def allocate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)


def lengthen(run_dir: Path, deltas: int, *, seed: int = 7) -> Manifest:
    """Adds so many deltas, each with as many rows of each table as the newest delta has. Returns the newest."""
    newest = Scanner(run_dir).scan().manifests[-1]
    if newest.kind is not Kind.DELTA:
        raise ValueError("the chain has to end with a delta, which the others are made like")
    growth = _Growth(run_dir, newest, np.random.default_rng(seed))
    for _ in range(deltas):
        newest = growth.follow(newest)
    return newest


class _Growth:
    """Writes deltas that have the tensors of a first one: other rows, the next step, and whose child it is."""

    def __init__(self, run_dir: Path, like: Manifest, random: np.random.Generator) -> None:
        self._directory = directory_of(run_dir, Kind.DELTA)
        self._random = random
        self._disk = CarelessDisk()
        data = [file for file in like.files if file.role != names.ROLE_INDEX]
        self._roles = [file.role for file in sorted(data, key=lambda file: file.name)]
        with BundleReader(self._directory, like.prefix) as reader:
            self._tensors: Mapping[str, Array] = {name: reader.read(name) for name in reader.entries}
            self._layout = [
                TensorLayout(name, entry.dtype, entry.shape, entry.shard)
                for name, entry in reader.entries.items()
            ]

    def follow(self, parent: Manifest) -> Manifest:
        step = parent.step + 1
        node = Node(parent.position.next(), new_state_id())
        prefix = f"{names.DELTA_STEM}{step}"
        writer = BundleWriter(self._directory, prefix, self._layout, shard_roles=self._roles, disk=self._disk)
        for name in self._tensors:
            writer.write(name, self._value(name, parent, node, step))
        prepared = writer.finish()
        for name, temporary in prepared.temporary_names.items():
            (self._directory / temporary).rename(self._directory / name)
        manifest = replace(
            parent,
            position=node.position,
            state_id=node.state_id,
            parent=parent.node,
            prefix=prefix,
            step=step,
            files=prepared.files,
            highest_step=replace(parent.highest_step, delta=step),
        )
        (self._directory / names.manifest_name(prefix)).write_bytes(manifest.to_json())
        return manifest

    def _value(self, name: str, parent: Manifest, node: Node, step: int) -> Array:
        value = self._tensors[name]
        if name == names.IDENTITY_TENSOR:
            return np.array(encode_identity(node, parent.node), np.int64)
        if name == names.STEP_TENSOR:
            return np.full_like(value, step)
        table = parent.tables.get(name.removesuffix(names.IDS_SUFFIX))
        if table is not None and name.endswith(names.IDS_SUFFIX):
            return np.sort(self._random.choice(table.shape[0], len(value), replace=False)).astype(value.dtype)
        if name.endswith(names.ROWS_SUFFIX) and value.dtype.kind == "f":
            return self._random.random(value.shape, np.float32).astype(value.dtype)
        return value
