"""Which functions can be signatures: those that a SavedModel keeps, under the names that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from exporter.loaded_graph import LoadedGraph
from hotdelta.errors import ConfigurationError


class Rows(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))


def export(directory: Path, function: Any, *specs: Any) -> Any:
    """The signature `f` as plain TensorFlow finds it in an export of `function(module, *inputs)`."""
    module = Rows()
    traced = tf.function(lambda *inputs: function(module, *inputs), input_signature=list(specs))
    return export_traced(directory, module, traced)


def export_traced(directory: Path, module: Rows, function: Any) -> Any:
    path = export_saved_model(module, directory, signatures={"f": function}, tables=["rows"])
    return tf.saved_model.load(str(path)).signatures["f"]


def ids(name: str = "ids") -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.int64, name=name)


def look_up(module: Rows, wanted: tf.Tensor) -> Any:
    return {"row": tf.gather(module.rows, wanted)}


# Each list is one signature. Python's own calls cannot tell those of the last from one another, nor give `self`.
@pytest.mark.parametrize(
    "names, is_eager",
    [
        (["User", "user-id", "a.b", "1st", "c/d", "e f", "Größe", "_x", "class", "prefix", "inputs"], True),
        (["User", "user", "a b", "a.b", "a/b", "a:b", "/a", "self", "hotdelta_input_61"], False),
    ],
)
def test_names_of_inputs_are_kept(tmp_path: Path, names: list[str], is_eager: bool) -> None:
    def look_up_all(module: Rows, *wanted: tf.Tensor) -> Any:
        return {name: tf.gather(module.rows, each) for name, each in zip(names, wanted, strict=True)}

    function = export(tmp_path, look_up_all, *map(ids, names))
    fed = {name: np.array([index % 4]) for index, name in enumerate(names)}
    if is_eager:
        found = function(**{name: tf.constant(value) for name, value in fed.items()})
    else:
        with LoadedGraph(tmp_path / "1") as graph:
            found = graph.call("f", fed)

    assert {name: np.asarray(value)[0, 0] / 2 for name, value in found.items()} == {
        name: index % 4 for index, name in enumerate(names)
    }


def test_nested_outputs_have_the_names_of_their_keys_joined(tmp_path: Path) -> None:
    def nested(module: Rows, wanted: tf.Tensor) -> Any:
        row = tf.gather(module.rows, wanted)
        return {"row": {"left": row[:, 0], "right": row[:, 1]}, "ids": [wanted, wanted + 1]}

    found = export(tmp_path, nested, ids())(ids=tf.constant([3], tf.int64))
    assert {name: value.numpy().tolist() for name, value in found.items()} == {
        "row_left": [6.0],
        "row_right": [7.0],
        "ids_0": [3],
        "ids_1": [4],
    }


@pytest.mark.parametrize(
    "outputs, problem",
    [
        (lambda _: None, "output 'output_0' is a NoneType"),
        (lambda _: {}, "has no outputs"),
        (
            lambda row: {"row": tf.RaggedTensor.from_row_lengths(row, [1])},
            r"'row' is a RaggedTensor.*to_tensor",
        ),
        (lambda row: {"row": tf.sparse.from_dense(row)}, "'row' is a SparseTensor"),
        (lambda row: {"a": {"b": row}, "a_b": row}, "two outputs of one name: a_b, a_b"),
    ],
)
def test_outputs_that_a_saved_model_cannot_return_are_refused(
    tmp_path: Path, outputs: Any, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        export(tmp_path, lambda module, wanted: outputs(tf.gather(module.rows, wanted)), ids())


@pytest.mark.parametrize(
    "spec", [tf.RaggedTensorSpec([None, None], tf.int64), tf.SparseTensorSpec([None, None], tf.int64)]
)
def test_ragged_and_sparse_inputs_are_refused_with_the_remedy(tmp_path: Path, spec: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"TensorSpec.*take dense tensors"):
        export(tmp_path, lambda module, wanted: look_up(module, wanted.values), spec)


@pytest.mark.parametrize(
    "function", [lambda wanted: wanted, ids(), "look_up", tf.function(lambda wanted: wanted)]
)
def test_what_is_no_function_with_known_inputs_is_refused(tmp_path: Path, function: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"signature 'f'.*with an input_signature"):
        export_traced(tmp_path, Rows(), function)
