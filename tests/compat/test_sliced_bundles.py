"""How a table in parts lies on disk: slices of one tensor, and what the manifest says of them."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import BundleReader, Manifest, TableRecord, Tracking
from hotdelta.errors import ManifestError
from tests.chain.manifests import full


def test_slices_of_rows_are_read_as_one_tensor(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((9000, 3), np.float32)
    cuts = [0, 5, 70, 200, 8500, 9000]
    pieces = list(pairwise(cuts))
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt-1"),
        tensor_names=["a/table"] * len(pieces),
        shape_and_slices=[f"9000 3 {start},{end - start}:{'0,3' if start else '-'}" for start, end in pieces],
        tensors=[values[start:end] for start, end in pieces],
    )
    with BundleReader(tmp_path, "model.ckpt-1") as reader:
        assert reader.read("a/table").tobytes() == values.tobytes()


def test_slices_of_columns_are_refused(tmp_path: Path) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt-1"),
        tensor_names=["table"] * 2,
        shape_and_slices=["4 2 0,4:0,1", "4 2 0,4:1,1"],
        tensors=[tf.ones((4, 1)), tf.ones((4, 1))],
    )
    with BundleReader(tmp_path, "model.ckpt-1") as reader, pytest.raises(ManifestError, match="whole rows"):
        reader.read("table")


def test_a_manifest_says_how_a_table_is_cut() -> None:
    table = TableRecord((30, 4), "float32", Tracking.TOUCHED, 3, part_rows=(8, 8, 7, 7), strategy="mod")
    manifest = dataclasses.replace(full("1.1"), tables={"table": table})
    assert Manifest.from_json(manifest.to_json()) == manifest
    wrong = dataclasses.replace(table, part_rows=(8, 8, 7))
    with pytest.raises(ManifestError, match="add up"):
        Manifest.from_json(dataclasses.replace(manifest, tables={"table": wrong}).to_json())
