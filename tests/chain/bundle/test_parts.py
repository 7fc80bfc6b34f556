"""Bundles that several processes wrote become one, which TensorFlow and we read as if one process had written it."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import BundleReader, BundleWriter, Disk, PreparedBundle, TensorLayout
from hotdelta.chain.bundle.parts import Piece, adopt_part, discard_parts, merge_parts
from hotdelta.chain.format import names
from hotdelta.errors import CommitError
from tests.chain.disks import CountingDisk, FailingDisk

STEM = "incremental_model.ckpt-in-progress-1.2"
PREFIX = "incremental_model.ckpt-7"
Tensors = dict[str, npt.NDArray[Any]]
PARTS: list[Tensors] = [{"a": np.ones(5), "half": np.ones(5, np.float16)}, {"half": np.ones(3, np.float16)}]
JOINED = {"half": [Piece(0, "half"), Piece(1, "half")]}


def save_part(directory: Path, number: int, tensors: Tensors) -> str:
    """As a parameter server does. Returns the prefix of the part."""
    prefix = f"{STEM}.part-{number:05d}"
    tf.raw_ops.SaveV2(
        prefix=str(directory / f"{names.TEMPORARY_PREFIX}{prefix}"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(values) for values in tensors.values()],
    )
    return prefix


def save_and_adopt(
    directory: Path, parts: Sequence[Tensors], disk: Disk | None = None
) -> list[PreparedBundle]:
    prefixes = [save_part(directory, number, tensors) for number, tensors in enumerate(parts)]
    roles = [names.ROLE_TRAINING if number % 2 else names.ROLE_SERVING for number in range(len(parts))]
    return [
        adopt_part(directory, prefix, role=role, disk=disk or Disk())
        for prefix, role in zip(prefixes, roles, strict=True)
    ]


def publish(prepared: PreparedBundle) -> None:
    for name, temporary in prepared.temporary_names.items():
        (prepared.directory / temporary).rename(prepared.directory / name)


def restore(directory: Path, name: str, dtype: Any) -> npt.NDArray[Any]:
    (tensor,) = tf.raw_ops.RestoreV2(
        prefix=str(directory / PREFIX), tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
    )
    return np.asarray(tensor)


def assert_holds(directory: Path, name: str, expected: npt.NDArray[Any]) -> None:
    for found in (restore(directory, name, expected.dtype), _read(directory, name)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert found.tobytes() == expected.tobytes(), name


def _read(directory: Path, name: str) -> npt.NDArray[Any]:
    with BundleReader(directory, PREFIX) as reader:
        return reader.read(name)


@settings(max_examples=40)
@given(
    rows=st.lists(st.sampled_from([0, 0, 1, 3, 70, 9000]), min_size=1, max_size=6),
    rest=st.sampled_from([(), (1,), (4,), (2, 3)]),
    dtype=st.sampled_from(["float32", "float64", "int64", "float16", "uint32"]),
)
def test_rows_of_all_parts_are_one_tensor(
    rows: list[int], rest: tuple[int, ...], dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("parts")
    largest_exact_float16 = 2048
    numbers = np.arange(sum(rows) * math.prod(rest)) % largest_exact_float16
    whole = numbers.astype(dtype).reshape(-1, *rest)
    ends = np.cumsum(rows)
    pieces = [whole[end - count : end] for end, count in zip(ends, rows, strict=True)]
    parts = save_and_adopt(directory, [{f"rows {n}": piece} for n, piece in enumerate(pieces)])
    joined = {"table-rows": [Piece(number, f"rows {number}") for number in range(len(parts))]}
    publish(merge_parts(PREFIX, parts, joined, disk=Disk()))
    assert_holds(directory, "table-rows", whole)


def test_pieces_come_in_the_given_order_whichever_part_they_lie_in(tmp_path: Path) -> None:
    first: Tensors = {
        "ids 0": np.array([1, 2]),
        "ids 2": np.array([60]),
        "other": np.ones((2, 2), np.float32),
    }
    second: Tensors = {"ids 1": np.array([30, 31, 35]), "step": np.array(7)}
    parts = save_and_adopt(tmp_path, [first, second])
    joined = {
        "t-ids": [Piece(0, "ids 0"), Piece(1, "ids 1"), Piece(0, "ids 2")],
        "my step": [Piece(1, "step")],
    }
    publish(merge_parts(PREFIX, parts, joined, disk=Disk()))
    assert_holds(tmp_path, "t-ids", np.array([1, 2, 30, 31, 35, 60]))
    assert_holds(tmp_path, "other", first["other"])
    assert_holds(tmp_path, "my step", second["step"])
    assert sorted(name for name, _ in tf.train.list_variables(str(tmp_path / PREFIX))) == [
        "my step",
        "other",
        "t-ids",
    ]


def test_a_bundle_of_our_own_writer_is_a_part_with_all_its_data_files(tmp_path: Path) -> None:
    roles = (names.ROLE_SERVING, names.ROLE_TRAINING)
    layouts = [
        TensorLayout("dense-value", "float32", (1, 2), 0),
        TensorLayout("slot-value", "int64", (3,), 1),
    ]
    writer = BundleWriter(tmp_path, f"{STEM}.chief", layouts, shard_roles=roles, disk=Disk())
    writer.write("dense-value", np.ones((1, 2), np.float32))
    writer.write("slot-value", np.arange(3))
    (part,) = save_and_adopt(tmp_path, [{"rows": np.ones((2, 1))}])
    merged = merge_parts(PREFIX, [writer.finish(), part], {}, disk=Disk())
    assert [file.role for file in merged.files] == [*roles, names.ROLE_SERVING, names.ROLE_INDEX]
    assert [file.name for file in merged.files[:3]] == [names.data_name(PREFIX, n, 3) for n in range(3)]
    publish(merged)
    assert_holds(tmp_path, "dense-value", np.ones((1, 2), np.float32))
    assert_holds(tmp_path, "slot-value", np.arange(3))
    assert_holds(tmp_path, "rows", np.ones((2, 1)))
    # Nothing is left over: the parts' own indexes are gone.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.name for file in merged.files)


def test_records_say_what_is_in_the_files(tmp_path: Path) -> None:
    merged = merge_parts(PREFIX, save_and_adopt(tmp_path, [{"a": np.ones(5)}]), {}, disk=Disk())
    for file in merged.files:
        content = (tmp_path / merged.temporary_names[file.name]).read_bytes()
        assert len(content) == file.bytes
    publish(merged)


def test_a_tensor_of_two_parts_that_nothing_joins_is_refused(tmp_path: Path) -> None:
    parts = save_and_adopt(tmp_path, [{"a": np.ones(5)}, {"a": np.ones(5)}])
    with pytest.raises(ValueError, match="'a' is in two parts"):
        merge_parts(PREFIX, parts, {}, disk=Disk())


def test_pieces_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    parts = save_and_adopt(tmp_path, [{"a": np.ones((5, 2))}, {"b": np.ones((5, 3))}])
    with pytest.raises(ValueError, match="do not fit"):
        merge_parts(PREFIX, parts, {"t": [Piece(0, "a"), Piece(1, "b")]}, disk=Disk())
    parts = save_and_adopt(tmp_path, [{"a": np.array(1.0)}, {"b": np.array(1.0)}])
    with pytest.raises(ValueError, match="do not fit"):
        merge_parts(PREFIX, parts, {"t": [Piece(0, "a"), Piece(1, "b")]}, disk=Disk())


def test_a_part_that_is_missing_or_damaged_is_no_commit(tmp_path: Path) -> None:
    with pytest.raises(CommitError, match="adopting"):
        adopt_part(tmp_path, f"{STEM}.part-00009", role=names.ROLE_SERVING, disk=Disk())
    (part,) = save_and_adopt(tmp_path, [{"a": np.ones(5)}])
    index = tmp_path / part.temporary_names[names.index_name(part.prefix)]
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(CommitError, match="a part cannot be used"):
        merge_parts(PREFIX, [part], {}, disk=Disk())


def test_what_tensorflow_cannot_join_is_copied_into_a_file_of_its_role(tmp_path: Path) -> None:
    merged = merge_parts(PREFIX, save_and_adopt(tmp_path, PARTS), JOINED, disk=Disk())
    assert [file.role for file in merged.files] == [
        names.ROLE_SERVING,
        names.ROLE_TRAINING,
        names.ROLE_SERVING,
        names.ROLE_INDEX,
    ]
    publish(merged)
    assert_holds(tmp_path, "half", np.ones(8, np.float16))
    assert_holds(tmp_path, "a", np.ones(5))


def test_every_failure_of_the_disk_is_a_commit_error_and_leaves_nothing(tmp_path: Path) -> None:
    counting = CountingDisk()
    merge_parts(PREFIX, save_and_adopt(tmp_path, PARTS, counting), JOINED, disk=counting)
    for number in range(1, counting.calls + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        disk = FailingDisk(number, errno.EIO)
        with pytest.raises(CommitError):
            merge_parts(PREFIX, save_and_adopt(directory, PARTS, disk), JOINED, disk=disk)
        discard_parts(directory, STEM, disk=Disk())
        discard_parts(directory, PREFIX, disk=Disk())
        assert not list(directory.iterdir())


def test_discarding_leaves_the_files_of_others(tmp_path: Path) -> None:
    for name in (f".tmp-{STEM}.part-00000.index", f".tmp-{STEM}0.part-00000.index", f"{STEM}.index"):
        (tmp_path / name).touch()
    discard_parts(tmp_path, f"{STEM}.", disk=Disk())
    assert len(list(tmp_path.iterdir())) == 2
