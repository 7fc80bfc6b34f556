"""Deltas are read once, into memory of our own, and every lie of their index is found before it does harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hotdelta.chain import BundleEntry, FileRecord, Manifest
from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.index import BundleIndex, encode_index
from hotdelta.chain.bundle.slice_key import slice_key
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError
from loader.files.delta_in_memory import DeltaFiles
from tests.chain.manifests import delta

pytestmark = pytest.mark.I4

PREFIX = "incremental_model.ckpt-7"
WHOLE = np.arange(24, dtype=np.float32).reshape(6, 4)


def entry(rows: npt.NDArray[Any], offset: int, *, shard: int = 0, **changed: Any) -> BundleEntry:
    made = BundleEntry(str(rows.dtype), rows.shape, shard, offset, rows.nbytes, crc32c=0)
    return replace(made, **changed)


def write(
    run_dir: Path, entries: Mapping[str, BundleEntry], shards: list[bytes], *, roles: list[str] | None = None
) -> Manifest:
    """A delta of exactly these bytes, with a manifest that lists them as they are."""
    directory = run_dir / names.DELTA_DIRECTORY
    directory.mkdir(parents=True)
    contents = {names.data_name(PREFIX, number, len(shards)): data for number, data in enumerate(shards)}
    wanted = dict(zip(contents, roles or [names.ROLE_SERVING] * len(shards), strict=True))
    contents[names.index_name(PREFIX)] = encode_index(BundleIndex(len(shards), entries))
    for name, data in contents.items():
        (directory / name).write_bytes(data)
    files = tuple(
        FileRecord(name, len(data), digest_bytes(data), wanted.get(name, names.ROLE_INDEX))
        for name, data in contents.items()
    )
    return replace(delta("1.2", "1.1"), prefix=PREFIX, files=files)


def load(run_dir: Path, manifest: Manifest) -> DeltaFiles:
    with DeltaFiles(run_dir, manifest) as files:
        files.load()
    return files


def test_a_tensor_in_slices_of_several_files_is_joined(tmp_path: Path) -> None:
    slices = (((0, 2), (0, -1)), ((2, 4), (0, -1)))
    entries = {
        "rows": entry(WHOLE, 0, size=0, slices=slices),
        slice_key("rows", slices[0]): entry(WHOLE[:2], 0, shard=1),
        slice_key("rows", slices[1]): entry(WHOLE[2:], 8, shard=0),
    }
    manifest = write(tmp_path, entries, [b"--gap---" + WHOLE[2:].tobytes(), WHOLE[:2].tobytes()])
    files = load(tmp_path, manifest)
    files.require_digests()
    np.testing.assert_array_equal(files.read("rows"), WHOLE)


@pytest.mark.parametrize("slices", [((),), (((0, 6),),), (((0, 6), (0, -1), (0, -1)),)])
@pytest.mark.parametrize("shape", [WHOLE.shape, ()])
def test_slices_of_another_rank_are_refused(tmp_path: Path, slices: Any, shape: tuple[int, ...]) -> None:
    entries = {"rows": replace(entry(WHOLE, 0, size=0, slices=slices), shape=shape)}
    files = load(tmp_path, write(tmp_path, entries, [WHOLE.tobytes()]))
    with pytest.raises(DamagedError, match="another rank"):
        files.read("rows")


@pytest.mark.parametrize("gap", [0, 1, 7, 64])
def test_tensors_lie_so_that_tensorflow_need_not_copy_them(tmp_path: Path, gap: int) -> None:
    # What is smaller is read at once, and copied.
    data = b"x" * gap + WHOLE.tobytes() + b"trailing" * 2**13
    files = load(tmp_path, write(tmp_path, {"rows": entry(WHOLE, gap)}, [data]))
    files.require_digests()
    assert files.read("rows").ctypes.data % 64 == 0
    np.testing.assert_array_equal(files.read("rows"), WHOLE)


def test_bytes_between_tensors_are_verified_too(tmp_path: Path) -> None:
    manifest = write(tmp_path, {"rows": entry(WHOLE, 8)}, [b"--gap---" + WHOLE.tobytes()])
    path = tmp_path / names.DELTA_DIRECTORY / manifest.files[0].name
    path.write_bytes(b"--gaq---" + WHOLE.tobytes())
    with pytest.raises(DamagedError, match="digest"):
        load(tmp_path, manifest).require_digests()


def test_empty_tensors_take_nothing_from_their_neighbours(tmp_path: Path) -> None:
    nothing = np.empty((0, 4), np.float32)
    entries = {"none": entry(nothing, 0), "rows": entry(WHOLE, 0)}
    files = load(tmp_path, write(tmp_path, entries, [WHOLE.tobytes()]))
    assert files.read("none").shape == (0, 4)
    files.require_digests()
    np.testing.assert_array_equal(files.read("rows"), WHOLE)


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    entries = {"one": entry(WHOLE, 0), "other": entry(WHOLE, 16)}
    with pytest.raises(DamagedError, match="two of its tensors"):
        load(tmp_path, write(tmp_path, entries, [WHOLE.tobytes() + bytes(16)]))


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"offset": 8}, "not in the files"),
        ({"size": 2**40}, "not in the files"),
        ({"shard": 1}, "not in the files"),
        ({"size": 92}, "has 92 bytes"),
        ({"shape": (2**30, 4)}, "which is not"),
    ],
)
def test_what_the_index_says_must_be_in_a_file_that_serving_reads(
    tmp_path: Path, wrong: dict[str, Any], reason: str
) -> None:
    entries = {"rows": replace(entry(WHOLE, 0), **wrong)}
    roles = [names.ROLE_SERVING, names.ROLE_TRAINING]
    manifest = write(tmp_path, entries, [WHOLE.tobytes(), WHOLE.tobytes()], roles=roles)
    with DeltaFiles(tmp_path, manifest) as files, pytest.raises(DamagedError, match=reason):
        files.read("rows")


def test_files_of_training_are_never_opened(tmp_path: Path) -> None:
    roles = [names.ROLE_SERVING, names.ROLE_TRAINING]
    manifest = write(tmp_path, {"rows": entry(WHOLE, 0)}, [WHOLE.tobytes(), b"slots"], roles=roles)
    (tmp_path / names.DELTA_DIRECTORY / manifest.files[1].name).unlink()
    load(tmp_path, manifest).require_digests()


def test_a_file_that_shrinks_while_it_is_read_is_tried_again(tmp_path: Path) -> None:
    manifest = write(tmp_path, {"rows": entry(WHOLE, 0)}, [WHOLE.tobytes()])
    with DeltaFiles(tmp_path, manifest) as files:
        (tmp_path / names.DELTA_DIRECTORY / manifest.files[0].name).write_bytes(b"")
        with pytest.raises(DamagedError, match="shorter") as caught:
            files.load()
    assert caught.value.retryable


def test_a_manifest_without_an_index_is_refused(tmp_path: Path) -> None:
    manifest = write(tmp_path, {"rows": entry(WHOLE, 0)}, [WHOLE.tobytes()])
    with pytest.raises(DamagedError, match="no index"):
        DeltaFiles(tmp_path, replace(manifest, files=manifest.files[:1]))
