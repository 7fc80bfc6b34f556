"""Deltas that no trainer would write, with digests and checksums that are right: what only the later gates can see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hotdelta.chain import BundleReader, BundleWriter, Disk, FileRecord, Manifest, TensorLayout, directory_of
from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.index import BundleIndex, encode_index
from hotdelta.chain.format import names
from tests.chaos.rig import put
from tests.loader.step_model import commit_paths

Array = npt.NDArray[Any]


def rewrite(run_dir: Path, manifest: Manifest, **changed: Any) -> Manifest:
    """The files of a commit with some of its tensors replaced, and a manifest that fits them (not written)."""
    directory = directory_of(run_dir, manifest.kind)
    with BundleReader(directory, manifest.prefix) as reader:
        tensors = {name: reader.read(name) for name in reader.entries}
        shards = {name: entry.shard for name, entry in reader.entries.items()}
    tensors.update({name.replace("__", "-"): value for name, value in changed.items()})
    layouts = [
        TensorLayout(name, array.dtype.name, array.shape, shards[name]) for name, array in tensors.items()
    ]
    roles = (names.ROLE_SERVING, names.ROLE_TRAINING)
    writer = BundleWriter(directory, manifest.prefix, layouts, shard_roles=roles, disk=Disk())
    for name, array in tensors.items():
        writer.write(name, array)
    prepared = writer.finish()
    for name, temporary in prepared.temporary_names.items():
        (directory / temporary).replace(directory / name)
    tables = {
        key: replace(table, rows_changed=len(tensors.get(key + names.IDS_SUFFIX, ())))
        for key, table in manifest.tables.items()
    }
    return replace(manifest, files=prepared.files, tables=tables)


def declare(run_dir: Path, manifest: Manifest, name: str, shape: tuple[int, ...]) -> Manifest:
    """An index that says that a tensor has another shape, and a manifest that fits it (not written)."""
    directory = directory_of(run_dir, manifest.kind)
    with BundleReader(directory, manifest.prefix) as reader:
        entries = {**reader.entries, name: replace(reader.entries[name], shape=shape)}
        content = encode_index(BundleIndex(reader.num_shards, entries))
    index = names.index_name(manifest.prefix)
    put(directory / index, content)
    record = FileRecord(index, len(content), digest_bytes(content), names.ROLE_INDEX)
    return replace(manifest, files=tuple(record if file.name == index else file for file in manifest.files))


def publish(run_dir: Path, manifest: Manifest) -> None:
    put(commit_paths(run_dir, manifest)[-1], manifest.to_json())
