from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import BundleReader, BundleWriter, Disk, PreparedBundle, TensorLayout
from hotdelta.chain.bundle import shard_file
from hotdelta.chain.format import names
from hotdelta.errors import CommitError, DamagedError
from tests.chain.disks import CountingDisk, FailingDisk

PREFIX = "model.ckpt-7"
ROLES = [names.ROLE_SERVING, names.ROLE_TRAINING]


def open_writer(directory: Path, *tensors: TensorLayout, disk: Disk | None = None) -> BundleWriter:
    return BundleWriter(directory, PREFIX, tensors, shard_roles=ROLES, disk=disk or Disk())


def publish(prepared: PreparedBundle) -> None:
    for name, temporary in prepared.temporary_names.items():
        (prepared.directory / temporary).rename(prepared.directory / name)


def layout(name: str, values: npt.NDArray[Any], shard: int = 0) -> TensorLayout:
    return TensorLayout(name, values.dtype.name, values.shape, shard)


def test_written_tensors_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    tensors: dict[str, npt.NDArray[Any]] = {
        "scalar": np.array(-3, np.int64),
        "empty": np.empty((0, 16), np.float32),
        "nan": np.array([[np.nan, -0.0], [1e-45, np.inf]], np.float32),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j], np.complex64),
    }
    writer = open_writer(tmp_path, *(layout(name, values, len(name) % 2) for name, values in tensors.items()))
    for name, values in tensors.items():
        writer.write(name, values)
    publish(writer.finish())
    with BundleReader(tmp_path, PREFIX) as reader:
        assert set(reader.entries) == set(tensors)
        for name, values in tensors.items():
            reader.check(name)
            assert reader.read(name).tobytes() == values.tobytes()
            assert reader.read(name).shape == values.shape
            assert reader.entries[name].offset % 64 == 0
            assert not reader.map(name).flags.writeable


def test_rows_that_come_in_order_are_hashed_as_they_come_and_not_read_again(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32).reshape(100, 10)
    writer = open_writer(tmp_path, layout("first", values), layout("second", values))
    for name in ("first", "second"):
        for start in (0, 30, 90):
            writer.write_rows(name, start, values[start : {0: 30, 30: 90, 90: 100}[start]])
    path = tmp_path / f".tmp-{names.data_name(PREFIX, 0, 2)}"
    content = path.read_bytes()
    path.write_bytes(b"\xff" + content[1:])
    prepared = writer.finish()
    assert prepared.files[0].digest == blake3(content).hexdigest()
    publish(prepared)
    with BundleReader(tmp_path, PREFIX) as reader:
        reader.check("second")
        with pytest.raises(DamagedError, match="checksum"):
            reader.check("first")


def test_rows_that_are_written_again_or_out_of_order_are_read_again(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32).reshape(100, 10)
    for orders in ([(50, 100), (0, 50)], [(0, 50), (0, 50), (50, 100)], [(0, 50), (60, 100), (50, 60)]):
        writer = open_writer(tmp_path, layout("table", values))
        for start, stop in orders:
            writer.write_rows("table", start, values[start:stop])
        publish(writer.finish())
        with BundleReader(tmp_path, PREFIX) as reader:
            reader.check("table")
            assert reader.read("table").tobytes() == values.tobytes()


def test_file_records_are_sizes_and_digests_of_the_files(tmp_path: Path) -> None:
    values = np.arange(100, dtype=np.float32)
    writer = open_writer(tmp_path, layout("a", values), layout("b", values))
    writer.write("a", values)
    writer.write("b", values)
    prepared = writer.finish()
    publish(prepared)
    assert [file.role for file in prepared.files] == [*ROLES, names.ROLE_INDEX]
    for file in prepared.files:
        content = (tmp_path / file.name).read_bytes()
        assert (file.bytes, file.digest) == (len(content), blake3(content).hexdigest())


def test_order_of_writing_does_not_change_the_files(tmp_path: Path) -> None:
    first, second = np.arange(9, dtype=np.float32), np.arange(5, dtype=np.int32)
    prepared = []
    for number, order in enumerate(["ab", "ba", "aab"]):
        directory = tmp_path / str(number)
        directory.mkdir()
        writer = open_writer(directory, layout("a", first), layout("b", second))
        for name in order:
            writer.write(name, first if name == "a" else second)
        prepared.append(writer.finish().files)
    assert prepared[0] == prepared[1] == prepared[2]


def test_bfloat16_is_written_from_its_bits(tmp_path: Path) -> None:
    bits = np.array([[0x3F80, 0x7FC1]], np.uint16)
    writer = open_writer(tmp_path, TensorLayout("b", "bfloat16", (1, 2), 0))
    writer.write("b", bits)
    publish(writer.finish())
    with BundleReader(tmp_path, PREFIX) as reader:
        assert reader.entries["b"].dtype == "bfloat16"
        assert reader.read("b").tolist() == bits.tolist()


@settings(max_examples=60)
@given(data=st.data())
def test_rows_written_in_any_order_and_patched_equal_an_array(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("bundle")
    shape = (data.draw(st.integers(1, 300)), data.draw(st.integers(1, 3)), 2)
    expected = np.random.default_rng(0).integers(0, 2**15, shape).astype(np.int16)
    writer = open_writer(directory, TensorLayout("pad", "int8", (3,), 0), layout("t", expected))
    cuts = sorted(data.draw(st.sets(st.integers(0, shape[0]))) | {0, shape[0]})
    parts = data.draw(st.permutations(list(itertools.pairwise(cuts))))
    for start, end in parts:
        writer.write_rows("t", start, expected[start:end])
    writer.write("pad", np.ones(3, np.int8))
    for _ in range(data.draw(st.integers(0, 3))):
        ids = np.array(sorted(data.draw(st.sets(st.integers(0, shape[0] - 1)))), np.int64)
        expected[ids] = data.draw(st.integers(0, 9))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard_file, "_WINDOW_BYTES", data.draw(st.sampled_from([8, 200, 2**20])))
            writer.patch_rows("t", ids, expected[ids])
    publish(writer.finish())
    with BundleReader(directory, PREFIX) as reader:
        reader.check("t")
        assert (reader.map("t") == expected).all()


@pytest.mark.parametrize("step", [1, 2, 3, 50])
@pytest.mark.parametrize("row_shape", [(16,), (2, 3), ()])
def test_many_scattered_rows_are_patched(tmp_path: Path, step: int, row_shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(1)
    expected = generator.normal(size=(40_000, *row_shape)).astype(np.float32)
    writer = open_writer(tmp_path, layout("t", expected))
    writer.write("t", expected)
    ids = np.arange(5, 39_990, step)
    expected[ids] = generator.normal(size=(len(ids), *row_shape))
    writer.patch_rows("t", ids, expected[ids])
    publish(writer.finish())
    with BundleReader(tmp_path, PREFIX) as reader:
        reader.check("t")
        assert reader.read("t").tobytes() == expected.tobytes()


def test_tensor_that_was_not_written_completely_is_refused(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, TensorLayout("t", "float32", (4, 2), 0))
    writer.write_rows("t", 0, np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="'t'"):
        writer.finish()
    writer.abandon()


@pytest.mark.parametrize(
    "values", [np.zeros((4, 2)), np.zeros((2, 4), np.float32), np.zeros((4, 2), ">f4")], ids=str
)
def test_values_that_do_not_fit_the_layout_are_refused(tmp_path: Path, values: npt.NDArray[Any]) -> None:
    writer = open_writer(tmp_path, TensorLayout("t", "float32", (4, 2), 0))
    with pytest.raises(ValueError, match="'t'"):
        writer.write("t", values)
    writer.abandon()


@pytest.mark.parametrize("ids", [[1, 1], [2, 1], [-1, 0], [3, 4], [0]])
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, ids: list[int]) -> None:
    writer = open_writer(tmp_path, TensorLayout("t", "float32", (4, 2), 0))
    with pytest.raises(ValueError, match="'t'"):
        writer.patch_rows("t", np.array(ids, np.int64), np.zeros((2, 2), np.float32))
    writer.abandon()


@pytest.mark.parametrize(
    "tensors",
    [
        [TensorLayout("t", "string", (1,), 0)],
        [TensorLayout("t", "float31", (1,), 0)],
        [TensorLayout("t", "float32", (1,), 2)],
        [TensorLayout("", "float32", (1,), 0)],
        [TensorLayout("t", "float32", (-1,), 0)],
        [TensorLayout("t", "float32", (1,), 0)] * 2,
    ],
    ids=str,
)
def test_layout_that_cannot_be_written_is_refused(tmp_path: Path, tensors: list[TensorLayout]) -> None:
    with pytest.raises(ValueError, match="tensor"):
        open_writer(tmp_path, *tensors)
    assert list(tmp_path.iterdir()) == []


def test_abandoned_bundle_leaves_nothing(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, TensorLayout("t", "float32", (4, 2), 0))
    writer.write("t", np.zeros((4, 2), np.float32))
    writer.finish()
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_a_commit_error_with_a_hint_and_leaves_nothing(tmp_path: Path) -> None:
    for call in range(1, 5):
        with pytest.raises(CommitError, match="disk is full") as caught:
            open_writer(
                tmp_path, TensorLayout("t", "float32", (4, 2), 0), disk=FailingDisk(call, errno.ENOSPC)
            )
        assert caught.value.retryable
        assert list(tmp_path.iterdir()) == []


def test_file_system_that_cannot_reserve_space_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    writer = open_writer(tmp_path, TensorLayout("t", "float32", (2,), 0))
    writer.write("t", np.ones(2, np.float32))
    publish(writer.finish())
    with BundleReader(tmp_path, PREFIX) as reader:
        reader.check("t")


def test_temporary_file_of_a_failed_save_makes_way(tmp_path: Path) -> None:
    open_writer(tmp_path, TensorLayout("t", "float32", (4,), 0))
    writer = open_writer(tmp_path, TensorLayout("t", "float32", (2,), 0))
    writer.write("t", np.ones(2, np.float32))
    publish(writer.finish())
    with BundleReader(tmp_path, PREFIX) as reader:
        assert reader.read("t").tolist() == [1, 1]


def test_small_bundle_is_not_read_again_and_few_calls_are_made(tmp_path: Path) -> None:
    disk = CountingDisk()
    values = np.zeros((1000, 16), np.float32)
    writer = open_writer(tmp_path, layout("t", values), disk=disk)
    writer.write_rows("t", 0, values)
    before = disk.calls
    writer.patch_rows("t", np.arange(0, 1000, 2), values[::2])
    assert disk.calls - before == 1
    writer.abandon()


def test_damaged_data_is_found_by_the_checksum_of_its_tensor(tmp_path: Path) -> None:
    values = np.arange(40, dtype=np.float32)
    writer = open_writer(tmp_path, layout("a", values), layout("b", values))
    writer.write("a", values)
    writer.write("b", values)
    prepared = writer.finish()
    publish(prepared)
    path = tmp_path / names.data_name(PREFIX, 0, 2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with BundleReader(tmp_path, PREFIX) as reader:
        reader.check("a")
        with pytest.raises(DamagedError, match="'b'"):
            reader.check("b")
    path.write_bytes(content[:-1])
    with BundleReader(tmp_path, PREFIX) as reader, pytest.raises(DamagedError) as caught:
        reader.read("b")
    assert caught.value.retryable
    path.unlink()
    with BundleReader(tmp_path, PREFIX) as reader, pytest.raises(DamagedError) as caught:
        reader.check("a")
    assert caught.value.retryable


def test_unknown_tensor_and_missing_index_are_damage(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, TensorLayout("t", "float32", (0,), 0))
    publish(writer.finish())
    with BundleReader(tmp_path, PREFIX) as reader, pytest.raises(DamagedError, match="'u'"):
        reader.read("u")
    with pytest.raises(DamagedError):
        BundleReader(tmp_path, "model.ckpt-8")


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("first, more", [(5, 3), (5, 0), (0, 3), (0, 0), (1, 1)])
def test_appended_rows_follow_those_of_the_layout(
    tmp_path: Path, first: int, more: int, is_streamed: bool
) -> None:
    grown = np.arange((first + more) * 3, dtype=np.float32).reshape(-1, 3)
    other = np.arange(7)
    writer = open_writer(tmp_path, layout("grown", grown[:first]), layout("other", other))
    if is_streamed:
        writer.write("grown", grown[:first])
        writer.write("other", other)
    else:
        writer.write("other", other)
        writer.write_rows("grown", 0, grown[:first] + 1)
        writer.patch_rows("grown", np.arange(first), grown[:first])
    writer.append_rows("grown", grown[first:])
    prepared = writer.finish()
    publish(prepared)

    for file in prepared.files:
        content = (tmp_path / file.name).read_bytes()
        assert (len(content), blake3(content).hexdigest()) == (file.bytes, file.digest)
    with BundleReader(tmp_path, PREFIX) as reader:
        assert reader.entries["grown"].shape == grown.shape
        written: dict[str, npt.NDArray[Any]] = {"grown": grown, "other": other}
        for name, values in written.items():
            reader.check(name)
            assert reader.map(name).tobytes() == values.tobytes()
            assert reader.read(name).tobytes() == values.tobytes()
        for start in range(len(grown)):
            assert (reader.read_rows("grown", start, len(grown)) == grown[start:]).all()


def test_rows_appended_to_several_tensors_of_several_shards_stay_apart(tmp_path: Path) -> None:
    tables = {name: np.full((2, 5), number, np.int64) for number, name in enumerate("abcd")}
    writer = open_writer(tmp_path, *(layout(name, t, n % 2) for n, (name, t) in enumerate(tables.items())))
    for name, table in tables.items():
        writer.write(name, table)
    for name, table in tables.items():
        writer.append_rows(name, table[:1] + 10)
    publish(writer.finish())
    with BundleReader(tmp_path, PREFIX) as reader:
        for name, table in tables.items():
            assert reader.read(name).tolist() == [*table.tolist(), (table[0] + 10).tolist()]


def test_rows_that_cannot_be_appended_are_refused(tmp_path: Path) -> None:
    rows, halves = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float16)
    writer = open_writer(tmp_path, layout("rows", rows), layout("halves", halves))
    with pytest.raises(ValueError, match="float16"):
        writer.append_rows("halves", halves)
    for unfit in (rows[:, :2], rows.astype(np.float64)):
        with pytest.raises(ValueError, match="was given"):
            writer.append_rows("rows", unfit)
    writer.append_rows("rows", rows)
    with pytest.raises(ValueError, match="already"):
        writer.append_rows("rows", rows)
    writer.abandon()
