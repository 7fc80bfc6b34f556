from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.keras.embedding import Embedding
from hotdelta.keras.optimizers.adagrad import Adagrad
from hotdelta.keras.optimizers.adam import Adam
from hotdelta.keras.optimizers.loss_scale import LossScaleOptimizer
from hotdelta.keras.optimizers.sgd import SGD
from hotdelta.train.tables.touched import TouchedRows
from tests.keras.optimizer_pairs import ALL, ROWS, Optimizer, Options, sparse_gradient, table

pytestmark = pytest.mark.optimized

IDS = np.array([[1, 2, 2], [9, 1, 40], [40, 40, 40], [7, 8, 9]])
TARGETS = np.arange(4.0).reshape(4, 1)


def build(optimizer: Any, **compile_options: Any) -> tuple[keras.Model, TouchedRows]:
    """A compiled model whose table records the rows that training touches."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,), dtype="int32")
    rows = Embedding(ROWS, 4, name="items")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(keras.layers.Flatten()(rows)))
    model.compile(optimizer, "mse", **compile_options)
    touched = TouchedRows(ROWS, name="items")
    recorder = getattr(optimizer, "inner_optimizer", optimizer)
    recorder.record_rows(model.get_layer("items")._embeddings, touched)
    return model, touched


def changed_rows(model: keras.Model, before: Any) -> list[int]:
    after = model.get_layer("items").get_weights()[0]
    return np.flatnonzero((after != before).any(axis=1)).tolist()


@pytest.mark.parametrize("kind, options", ALL)
@pytest.mark.parametrize("how", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}])
def test_fit_records_exactly_the_rows_that_it_changes(
    kind: Optimizer, options: Options, how: Options
) -> None:
    model, touched = build(kind(0.1, **options), **how)
    before = model.get_layer("items").get_weights()[0]
    model.fit(IDS, TARGETS, batch_size=2, verbose=0)
    taken = touched.take().tolist()
    assert taken == np.unique(IDS).tolist()
    assert taken == changed_rows(model, before)


def test_a_custom_loop_records_what_it_applies() -> None:
    optimizer, variable, touched = Adam(0.1), table(), TouchedRows(ROWS, name="t")
    optimizer.record_rows(variable, touched)
    optimizer.apply_gradients([(sparse_gradient([4, 4, 6], variable), variable)])
    assert touched.take().tolist() == [4, 6]


def test_only_the_registered_table_is_recorded_of_two_with_equal_shapes() -> None:
    first, second, touched = table(), table(), TouchedRows(ROWS, name="t")
    optimizer = SGD(0.1)
    optimizer.record_rows(second, touched)
    optimizer.apply_gradients([(sparse_gradient([1], first), first), (sparse_gradient([2], second), second)])
    assert touched.take().tolist() == [2]


def test_a_dense_gradient_touches_every_row() -> None:
    optimizer, variable, touched = Adagrad(0.1), table(), TouchedRows(ROWS, name="t")
    optimizer.record_rows(variable, touched)

    @tf.function
    def step() -> None:
        optimizer.apply([tf.ones_like(variable)], [variable])

    optimizer.build([variable])
    step()
    assert touched.take().size == ROWS


@pytest.mark.parametrize("gradient_of", [lambda variable: sparse_gradient([1], variable), tf.ones_like])
def test_recording_comes_after_every_write_in_the_graph(gradient_of: Any) -> None:
    optimizer, variable, touched = Adam(0.1, amsgrad=True), table(), TouchedRows(ROWS, name="t")
    optimizer.record_rows(variable, touched)
    optimizer.build([variable])

    @tf.function
    def step() -> None:
        optimizer.apply([gradient_of(variable)], [variable])

    graph = step.get_concrete_function().graph
    recorders = _writers(graph, touched.variables)
    writers = _writers(graph, [variable, *_slots(optimizer)])
    assert len(writers) == 4
    assert recorders
    for recorder in recorders:
        assert writers <= _ancestors(recorder)


def test_nothing_is_recorded_after_recording_stops_and_a_new_trace() -> None:
    model, touched = build(SGD(0.1))
    model.optimizer.stop_recording()
    model.fit(IDS, TARGETS, verbose=0)
    assert touched.take().size == 0


def test_the_outermost_graph_of_every_trace_is_known_while_it_lives() -> None:
    model, touched = build(Adagrad(0.1), steps_per_execution=2)
    assert model.optimizer.traced_graphs == ()
    model.fit(IDS, TARGETS, batch_size=2, verbose=0)
    (graph,) = model.optimizer.traced_graphs
    handles = {id(handle) for handle in (variable.handle for variable in touched.variables[:1])}
    assert handles <= {id(captured) for captured in graph.external_captures}


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("mixed_float16")
@pytest.mark.parametrize("kind", [keras.optimizers.LossScaleOptimizer, LossScaleOptimizer])
def test_a_loss_scale_optimizer_around_ours_records_only_steps_that_were_applied(kind: Optimizer) -> None:
    model, touched = build(kind(Adagrad(0.1), initial_scale=2.0**120))
    before = model.get_layer("items").get_weights()[0]
    model.fit(IDS, TARGETS, batch_size=4, verbose=0)
    assert touched.take().size == 0
    assert changed_rows(model, before) == []
    model.optimizer.dynamic_scale.assign(4.0)
    model.fit(IDS, TARGETS, batch_size=4, verbose=0)
    assert touched.take().tolist() == changed_rows(model, before) == np.unique(IDS).tolist()


def test_a_table_shared_by_two_inputs_records_the_ids_of_both() -> None:
    left, right = keras.Input((1,), dtype="int32"), keras.Input((2,), dtype="int32")
    items = Embedding(ROWS, 4)
    rows = keras.layers.Concatenate()([keras.layers.Flatten()(items(ids)) for ids in (left, right)])
    model = keras.Model([left, right], keras.layers.Dense(1)(rows))
    model.compile(Adagrad(0.1), "mse")
    touched = TouchedRows(ROWS, name="items")
    model.optimizer.record_rows(items._embeddings, touched)
    model.fit([IDS[:, :1], IDS[:, 1:]], TARGETS, verbose=0)
    assert touched.take().tolist() == np.unique(IDS).tolist()


def test_a_regularizer_touches_every_row_and_gives_the_numbers_of_keras() -> None:
    touched = TouchedRows(ROWS, name="items")
    weights = []
    for kind, optimizer in (
        (Embedding, Adagrad(0.1)),
        (keras.layers.Embedding, keras.optimizers.Adagrad(0.1)),
    ):
        keras.utils.set_random_seed(1)
        items = kind(ROWS, 4, embeddings_regularizer=keras.regularizers.L2(0.1))
        model = keras.Sequential([keras.Input((3,)), items, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        if kind is Embedding:
            optimizer.record_rows(items._embeddings, touched)
        model.fit(IDS, TARGETS, verbose=0, epochs=2)
        weights.append(items.get_weights()[0])
    assert touched.count() == ROWS
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)


def test_a_model_with_its_optimizer_is_saved_and_goes_on_training(tmp_path: Path) -> None:
    model, _ = build(Adam(0.1))
    model.fit(IDS, TARGETS, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is Adam
    for one in (model, loaded):
        one.fit(IDS, TARGETS, verbose=0, shuffle=False)
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        assert np.array_equal(ours, theirs)


def test_jit_compile_with_our_layer_trains_without_xla_and_keras_says_so() -> None:
    with pytest.warns(UserWarning, match="jit_compile=False"):
        model, touched = build(Adagrad(0.1), jit_compile=True)
    model.fit(IDS, TARGETS, verbose=0)
    assert touched.take().tolist() == np.unique(IDS).tolist()


def test_a_step_compiled_by_xla_is_refused_with_the_remedy() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(ROWS, 4), keras.layers.Flatten()])
    model.compile(Adagrad(0.1), "mse", jit_compile=True)
    with pytest.raises(ConfigurationError, match="jit_compile=False"):
        model.fit(IDS, np.zeros((4, 12)), verbose=0)


def test_a_custom_step_compiled_by_xla_is_refused_with_the_remedy() -> None:
    optimizer, variable = Adagrad(0.1), table()
    optimizer.build([variable])

    @tf.function(jit_compile=True, autograph=False)
    def step() -> None:
        optimizer.apply([sparse_gradient([1], variable)], [variable])

    with pytest.raises(ConfigurationError, match="jit_compile=False"):
        step()


def _slots(optimizer: Any) -> list[tf.Variable]:
    return [variable.value for variable in optimizer.variables if variable.shape == (ROWS, 16)]


def _writers(graph: Any, variables: Any) -> set[tf.Operation]:
    handles = {id(graph.capture(variable.handle)) for variable in variables}
    return {
        operation
        for operation in graph.get_operations()
        if operation.type.startswith(("Assign", "ResourceScatter")) and id(operation.inputs[0]) in handles
    }


def _ancestors(operation: tf.Operation) -> set[tf.Operation]:
    found: set[tf.Operation] = set()
    pending = [operation]
    while pending:
        current = pending.pop()
        for before in [*current.control_inputs, *(tensor.op for tensor in current.inputs)]:
            if before not in found:
                found.add(before)
                pending.append(before)
    return found
