"""Look-ups in tables, however they are written: an export gathers rows, and no prediction copies a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from exporter.loaded_graph import LoadedGraph
from hotdelta.chain.format.position import encode_identity
from hotdelta.errors import ConfigurationError
from tests.exporter.bundles import FIRST, SECOND, Array, write_bundle
from tests.exporter.largest_tensors import largest_tensor_bytes
from tests.exporter.lookup_cases import LOOKUPS, ROWS, WHOLE_READS, WIDTH, Case, Lookups

pytestmark = [pytest.mark.I5, pytest.mark.optimized]

IDS = np.array([7, 3, 4999, 3], np.int64)
TABLE_BYTES = ROWS * WIDTH * 4


def signature_of(model: Lookups, case: Case) -> Any:
    return tf.function(
        lambda ids: {"answer": case(model, ids)}, input_signature=[tf.TensorSpec([4], tf.int64, name="ids")]
    )


@pytest.fixture(scope="module")
def model() -> Lookups:
    return Lookups()


@pytest.fixture(scope="module")
def served(model: Lookups, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedGraph]:
    """One export, a signature for each case, updated by a delta; the model has the same values afterwards."""
    # As after training: the trace that is there reads the whole table.
    model.traced(tf.constant(IDS))
    directory = tmp_path_factory.mktemp("lookups")
    signatures = {name: signature_of(model, case) for name, case in LOOKUPS.items()}
    path = export_saved_model(model, directory / "export", save_incr_model=True, signatures=signatures)
    with LoadedGraph(path) as graph:
        update(graph, model, directory)
        yield graph


def update(graph: LoadedGraph, model: Lookups, directory: Path) -> None:
    random = np.random.default_rng(0)
    tables = {"items/embeddings": model.items, "more/embeddings": model.more}
    stamps = [encode_identity(FIRST, None), encode_identity(SECOND, FIRST)]
    full, delta = (
        dict[str, Array](
            {"hotdelta-identity": np.array(stamp, np.int64), "hotdelta-step": np.array(1, np.int64)}
        )
        for stamp in stamps
    )
    for key, layer in tables.items():
        value = random.standard_normal((ROWS, WIDTH), np.float32)
        full[key] = value.copy()
        value[[1, 3, 7]] = delta[f"{key}-rows"] = random.standard_normal((3, WIDTH), np.float32)
        delta[f"{key}-ids"] = np.array([1, 3, 7], np.int64)
        layer.embeddings.assign(value)
    graph.restore("restore_full", write_bundle(directory / "full", full))
    graph.restore("restore_incremental", write_bundle(directory / "delta", delta))


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_look_up_is_a_row_gather_and_copies_no_table(
    name: str, model: Lookups, served: LoadedGraph
) -> None:
    answer = served.call(name, {"ids": IDS})["answer"]
    expected = np.asarray(LOOKUPS[name](model, tf.constant(IDS)))
    assert answer.tobytes() == expected.tobytes()
    assert largest_tensor_bytes(served, name, {"ids": IDS}) < TABLE_BYTES / 10


@pytest.mark.parametrize("name", WHOLE_READS)
def test_what_needs_a_whole_table_is_refused_with_what_to_do(
    name: str, model: Lookups, tmp_path: Path
) -> None:
    signatures = {"serving_default": signature_of(model, WHOLE_READS[name])}
    with pytest.raises(
        ConfigurationError, match=r"reads all of table 'items/embeddings'.*look rows up.*`allow_whole"
    ):
        export_saved_model(model, tmp_path / "export", signatures=signatures)
    assert not (tmp_path / "export").exists()


def test_a_whole_read_that_is_allowed_is_seen_by_this_test(model: Lookups, tmp_path: Path) -> None:
    path = export_saved_model(
        model,
        tmp_path,
        signatures={"serving_default": signature_of(model, WHOLE_READS["tied"])},
        allow_whole_table_reads=["items/embeddings"],
    )
    with LoadedGraph(path) as graph:
        assert largest_tensor_bytes(graph, "serving_default", {"ids": IDS}) >= TABLE_BYTES


@keras.saving.register_keras_serializable(package="tests")
class EmbeddingCell(keras.layers.Layer):
    """A cell of a recurrent layer that looks its rows up itself."""

    def __init__(self) -> None:
        super().__init__()
        self.state_size = WIDTH
        self.embedding = keras.layers.Embedding(ROWS, WIDTH)
        self.embedding.build(())

    def call(self, ids: tf.Tensor, states: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        total = states[0] + self.embedding(ids)[:, 0]
        return total, [total]


def test_recurrent_and_time_distributed_layers_gather_rows(tmp_path: Path) -> None:
    """With weights above zero: where terms cancel out, what a fused operation rounds otherwise is all that is left."""
    some = keras.initializers.RandomUniform(0.1, 0.3, seed=1)
    ids = keras.Input((3, 1), dtype="int64", name="ids")
    rows = keras.layers.TimeDistributed(keras.layers.Embedding(ROWS, WIDTH, some))(ids)
    recurrent = keras.layers.SimpleRNN(2, kernel_initializer=some, recurrent_initializer=some)
    model = keras.Model(
        ids,
        {
            "rows": rows,
            "recurrent": recurrent(keras.layers.Reshape((3, WIDTH))(rows)),
            "cell": keras.layers.RNN(EmbeddingCell())(ids),
        },
    )
    path = export_saved_model(model, tmp_path, save_incr_model=True)
    fed = {"ids": np.array([[[1], [2], [4999]]])}
    with LoadedGraph(path) as graph:
        answer = graph.call("serving_default", fed)
        expected = model(fed["ids"])
        for name, value in expected.items():
            np.testing.assert_allclose(answer[name], value, rtol=1e-6)
        assert largest_tensor_bytes(graph, "serving_default", fed) < TABLE_BYTES / 10
