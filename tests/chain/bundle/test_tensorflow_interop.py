"""TensorFlow reads what the chain writes, and the chain reads what TensorFlow writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from hotdelta.chain import BundleReader, BundleWriter, Disk, Kind, TensorLayout, directory_of
from hotdelta.chain.bundle.dtypes import DTYPES
from hotdelta.chain.bundle.index import decode_index
from hotdelta.chain.bundle.wire import MalformedError
from hotdelta.chain.format import names
from tests.chain.model_trainer import ModelTrainer

pytestmark = pytest.mark.I8

PREFIX = "model.ckpt-1"
DTYPE_NAMES = sorted(set(DTYPES.values()) - {"string"})
SHAPES = [(), (3,), (0,), (2, 5), (0, 16), (4, 0), (2, 3, 4)]


def make_tensors() -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """One tensor of every dtype and every shape, as bits; bfloat16 as uint16."""
    generator = np.random.default_rng(3)
    tensors: dict[str, tuple[str, npt.NDArray[Any]]] = {}
    for dtype in DTYPE_NAMES:
        for shape in SHAPES:
            stand_in = np.dtype("uint16" if dtype == "bfloat16" else dtype)
            values = generator.integers(0, 2 if dtype == "bool" else 100, shape).astype(stand_in)
            tensors[f"{dtype}/{'x'.join(map(str, shape))}"] = (dtype, values)
    return tensors


def write(directory: Path, tensors: dict[str, tuple[str, npt.NDArray[Any]]]) -> str:
    layout = [
        TensorLayout(name, dtype, values.shape, number % 2)
        for number, (name, (dtype, values)) in enumerate(tensors.items())
    ]
    roles = [names.ROLE_SERVING, names.ROLE_TRAINING]
    writer = BundleWriter(directory, PREFIX, layout, shard_roles=roles, disk=Disk())
    for name, (_, values) in tensors.items():
        writer.write(name, values)
    for name, temporary in writer.finish().temporary_names.items():
        (directory / temporary).rename(directory / name)
    return str(directory / PREFIX)


def restore(prefix: str, tensors: dict[str, str]) -> list[Any]:
    restored: list[Any] = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        dtypes=[tf.as_dtype(dtype) for dtype in tensors.values()],
    )
    return restored


def test_tensorflow_restores_every_dtype_and_shape_that_we_write(tmp_path: Path) -> None:
    tensors = make_tensors()
    prefix = write(tmp_path, tensors)
    restored = restore(prefix, {name: dtype for name, (dtype, _) in tensors.items()})
    for found, (_, values) in zip(restored, tensors.values(), strict=True):
        assert found.numpy().tobytes() == values.tobytes()
        assert tuple(found.shape) == values.shape
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    assert {name: tuple(shape) for name, shape in shapes.items()} == {
        name: values.shape for name, (_, values) in tensors.items()
    }


def test_tensorflow_restores_the_serving_shard_without_the_training_shard(tmp_path: Path) -> None:
    tensors = make_tensors()
    prefix = write(tmp_path, tensors)
    (tmp_path / names.data_name(PREFIX, 1, 2)).unlink()
    present = {name: dtype for number, (name, (dtype, _)) in enumerate(tensors.items()) if number % 2 == 0}
    for name, found in zip(present, restore(prefix, present), strict=True):
        assert found.numpy().tobytes() == tensors[name][1].tobytes()


def test_we_read_every_dtype_and_shape_that_tensorflow_writes(tmp_path: Path) -> None:
    tensors = make_tensors()
    values = [
        tf.bitcast(tf.constant(value), tf.bfloat16) if dtype == "bfloat16" else tf.constant(value)
        for dtype, value in tensors.values()
    ]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / PREFIX),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=values,
    )
    with BundleReader(tmp_path, PREFIX) as reader:
        assert set(reader.entries) == set(tensors)
        for name, (dtype, expected) in tensors.items():
            reader.check(name)
            assert reader.entries[name].dtype == dtype
            assert reader.read(name).tobytes() == expected.tobytes()


def test_we_read_a_keras_checkpoint_with_many_blocks_strings_and_slices(tmp_path: Path) -> None:
    count = 8000
    tensor_names = [f"a/rather/long/name/of/a/variable/in/a/deep/model/{n:06d}/kernel" for n in range(count)]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / PREFIX),
        tensor_names=[*tensor_names, "text", "part"],
        shape_and_slices=[""] * (count + 1) + ["4 2 0,2:0,2"],
        tensors=[*[tf.constant([float(n)]) for n in range(count)], tf.constant(["x", "yy"]), tf.ones((2, 2))],
    )
    with BundleReader(tmp_path, PREFIX) as reader:
        assert reader.read(tensor_names[-1]).tolist() == [count - 1]
        assert reader.entries["text"].dtype == "string"
        assert reader.entries["part"].is_sliced
    data = (tmp_path / names.index_name(PREFIX)).read_bytes()
    assert len(decode_index(data).entries) == count + 3


def test_every_flip_of_a_byte_of_a_tensorflow_index_is_found(tmp_path: Path) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / PREFIX), tensor_names=["a"], shape_and_slices=[""], tensors=[tf.constant([1.0])]
    )
    data = (tmp_path / names.index_name(PREFIX)).read_bytes()
    decode_index(data)
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 0x55
        with pytest.raises(MalformedError):
            decode_index(bytes(damaged))


def test_tensorflow_finds_damage_in_our_data_by_our_checksum(tmp_path: Path) -> None:
    prefix = write(tmp_path, {"t": ("float32", np.arange(1000, dtype=np.float32))})
    path = tmp_path / names.data_name(PREFIX, 0, 2)
    data = bytearray(path.read_bytes())
    data[1234] ^= 4
    path.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError):
        restore(prefix, {"t": "float32"})


def test_latest_checkpoint_finds_the_newest_full_and_the_newest_delta(tmp_path: Path) -> None:
    trainer = ModelTrainer(tmp_path, Disk())
    trainer.open()
    trainer.save({1: 1}, Kind.FULL)
    for value in range(12):
        trainer.save({1: value}, Kind.DELTA, Kind.FULL)
    trainer.save({1: 2}, Kind.DELTA)
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-13")
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert [Path(path).name for path in state.all_model_checkpoint_paths] == [
        f"model.ckpt-{step}" for step in range(1, 14)
    ]
    deltas = directory_of(tmp_path, Kind.DELTA)
    assert tf.train.latest_checkpoint(str(deltas)) == str(deltas / "incremental_model.ckpt-14")
    trainer.retain(2)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert [Path(path).name for path in state.all_model_checkpoint_paths] == [
        "model.ckpt-12",
        "model.ckpt-13",
    ]
    trainer.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "float64"])
def test_tensorflow_restores_a_table_whose_rows_were_appended(tmp_path: Path, dtype: str) -> None:
    bits = np.arange(40, dtype="uint16" if dtype == "bfloat16" else dtype).reshape(10, 4)
    writer = BundleWriter(
        tmp_path,
        PREFIX,
        [TensorLayout("grown", dtype, (7, 4), 0), TensorLayout("new", dtype, (0, 4), 0)],
        shard_roles=[names.ROLE_SERVING],
        disk=Disk(),
    )
    writer.write("grown", bits[:7])
    for name, first in (("grown", 7), ("new", 0)):
        writer.append_rows(name, bits[first:])
    prepared = writer.finish()
    for name, temporary in prepared.temporary_names.items():
        (tmp_path / temporary).rename(tmp_path / name)
    for found in restore(str(tmp_path / PREFIX), {"grown": dtype, "new": dtype}):
        assert found.numpy().tobytes() == bits.tobytes()
        assert tuple(found.shape) == bits.shape
