"""The graph that the trainer leaves behind: small, replaced, and missed with a remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from hotdelta.chain.disk import Disk
from hotdelta.errors import DamagedError, ModelMismatchError
from hotdelta.keras.serving.graph import trace_keras_model
from hotdelta.train.serving.files import load_schema, load_serving_graph, save_serving_graph
from tests.keras.served_models import layers, two_towers


def test_the_graph_does_not_grow_with_the_table(tmp_path: Path) -> None:
    ids = keras.Input((), dtype="int64", name="ids")
    model = keras.Model(ids, layers.Embedding(1_000_000, 16, embeddings_initializer="zeros")(ids))
    module, schema = trace_keras_model(model)
    path = save_serving_graph(tmp_path, module, schema)
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 100_000


def test_a_model_with_the_same_variables_that_computes_something_else_replaces_the_graph(
    tmp_path: Path,
) -> None:
    def dense(activation: str) -> keras.Model:
        numbers = keras.Input((2,), name="numbers")
        kernel = {"kernel_initializer": "ones", "bias_initializer": "zeros"}
        return keras.Model(numbers, layers.Dense(1, activation=activation, name="score", **kernel)(numbers))

    def served(model: keras.Model) -> float:
        module, schema = trace_keras_model(model)
        save_serving_graph(tmp_path, module, schema)
        loaded = load_serving_graph(tmp_path, schema)
        for variable, value in zip(loaded.variables, module.variables, strict=True):
            variable.assign(value)
        return float(
            loaded.signatures["serving_default"].function(tf.constant([[-1.0, -2.0]]))["score"].numpy().item()
        )

    assert served(dense("linear")) == -3.0
    assert served(dense("relu")) == 0.0
    assert len(list(tmp_path.iterdir())) == 2


class DiskThatFillsUp(Disk):
    """Moves the old graph away, and has no room for the name of the new one."""

    def rename(self, source: Path, target: Path) -> None:
        if (source / "saved_model.pb").exists() and "old-" not in source.name + target.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        super().rename(source, target)


def test_a_graph_that_could_not_be_replaced_is_still_there(tmp_path: Path) -> None:
    module, schema = trace_keras_model(two_towers())
    path = save_serving_graph(tmp_path, module, schema)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match="No space left"):
        save_serving_graph(tmp_path, module, schema, disk=DiskThatFillsUp())
    assert path.is_dir()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_or_damaged_graph_says_what_to_do(tmp_path: Path) -> None:
    module, schema = trace_keras_model(two_towers())
    with pytest.raises(ModelMismatchError, match="no serving graph"):
        load_serving_graph(tmp_path, schema)
    with pytest.raises(ModelMismatchError, match="start the trainer again"):
        load_schema(tmp_path, schema.digest)
    path = save_serving_graph(tmp_path, module, schema)
    (path / "saved_model.pb").write_bytes(b"\xff" * 100)
    with pytest.raises(DamagedError, match="start the trainer again"):
        load_serving_graph(tmp_path, schema)
