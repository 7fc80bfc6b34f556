"""Commits that must never get into a model: with other bytes than their manifest says, unsigned, or of no chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hotdelta.chain import Kind, Manifest, Scanner, directory_of
from hotdelta.chain.bundle.digest import digest_bytes, masked_crc32c
from hotdelta.chain.bundle.index import BundleIndex, encode_index, read_index
from hotdelta.chain.format import names

BAD_VALUE = 4096.0
PLANTED = "model.ckpt-900"

Harm = Callable[[Path, Manifest], None]


def spoil(run_dir: Path, manifest: Manifest) -> None:
    """Other values, whose own checksums are in order, in files of the same size: only digests of the manifest tell."""
    _write_bad(directory_of(run_dir, manifest.kind), manifest.prefix, manifest.prefix)


def forge(run_dir: Path, manifest: Manifest) -> None:
    """Other values, and a manifest that says so: only a signature would tell."""
    spoil(run_dir, manifest)
    directory = directory_of(run_dir, manifest.kind)
    contents = {file.name: (directory / file.name).read_bytes() for file in manifest.files}
    files = [
        replace(file, bytes=len(contents[file.name]), digest=digest_bytes(contents[file.name]))
        for file in manifest.files
    ]
    forged = replace(manifest, files=tuple(files), signature="")
    (directory / names.manifest_name(manifest.prefix)).write_bytes(forged.to_json())


def plant(run_dir: Path) -> None:
    """A checkpoint as stock TensorFlow writes it, which the file `checkpoint` names: no manifest, no identity."""
    _write_bad(run_dir, _listed(run_dir, Kind.FULL)[-1].prefix, PLANTED)
    path = run_dir / names.index_name(PLANTED)
    index = read_index(path)
    entries = {name: entry for name, entry in index.entries.items() if not name.startswith("hotdelta-")}
    path.write_bytes(encode_index(BundleIndex(index.num_shards, entries)))
    (run_dir / names.STATE_FILE).write_text(f'model_checkpoint_path: "{PLANTED}"\n')


def fulls(run_dir: Path, harm: Harm) -> None:
    """To every full."""
    for manifest in _listed(run_dir, Kind.FULL):
        harm(run_dir, manifest)


def newest_delta(run_dir: Path, harm: Harm) -> None:
    harm(run_dir, _listed(run_dir, Kind.DELTA)[-1])


def _listed(run_dir: Path, kind: Kind) -> list[Manifest]:
    return [manifest for manifest in Scanner(run_dir).scan().manifests if manifest.kind is kind]


def _write_bad(directory: Path, source: str, target: str) -> None:
    """The bundle with another number in place of every float."""
    index = read_index(directory / names.index_name(source))
    shards = range(index.num_shards)
    data = [
        bytearray((directory / names.data_name(source, shard, len(shards))).read_bytes()) for shard in shards
    ]
    entries = dict(index.entries)
    for name, entry in index.entries.items():
        if entry.dtype == "float32":
            bad = np.full(entry.size // 4, BAD_VALUE, np.float32).tobytes()
            data[entry.shard][entry.offset : entry.offset + entry.size] = bad
            entries[name] = replace(entry, crc32c=masked_crc32c(bad))
    for shard in shards:
        (directory / names.data_name(target, shard, len(shards))).write_bytes(data[shard])
    (directory / names.index_name(target)).write_bytes(encode_index(BundleIndex(len(shards), entries)))
