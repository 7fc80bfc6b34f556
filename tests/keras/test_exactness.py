"""I1: full + deltas equals the trainer's variables at every saved position, bit for bit, whatever the optimizer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Tracking
from hotdelta.chain.format.position import Position
from tests.chain_replay import Values, replay, values_of

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

ROWS = 60
OURS: dict[str, Callable[[], Any]] = {
    "our SGD": lambda: hk.SGD(0.1),
    "our momentum": lambda: hk.SGD(0.1, momentum=0.9),
    "our nesterov": lambda: hk.SGD(0.1, momentum=0.9, nesterov=True),
    "our Adagrad": lambda: hk.Adagrad(0.1),
    "our Adam": lambda: hk.Adam(0.01),
    "our AdamW": lambda: hk.AdamW(0.01, weight_decay=0.1),
    "our Ftrl": lambda: hk.Ftrl(0.1),
    "our Adagrad, clipped": lambda: hk.Adagrad(0.1, global_clipnorm=0.5),
    "our Adagrad, loss scaled": lambda: keras.optimizers.LossScaleOptimizer(hk.Adagrad(0.1)),
}
FALLING_BACK: dict[str, Callable[[], Any]] = {
    "our SGD, weight decay": lambda: hk.SGD(0.1, weight_decay=0.01),
    "our Adagrad, EMA": lambda: hk.Adagrad(0.1, use_ema=True, ema_overwrite_frequency=3),
    "our Adagrad, accumulation": lambda: hk.Adagrad(0.1, gradient_accumulation_steps=3),
}
STOCK: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01),
    "AdamW": lambda: keras.optimizers.AdamW(0.01),
    "SGD, EMA": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "Adam, accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
}


def two_tables(layer: Any = hk.Embedding, **options: Any) -> keras.Model:
    """Two tables of equal shape, one of them looked up by two inputs, with BatchNorm and Dropout state on top."""
    left, right = (
        keras.Input((3,), dtype="int64", name="left"),
        keras.Input((3,), dtype="int64", name="right"),
    )
    shared, alone = layer(ROWS, 4, name="shared", **options), layer(ROWS, 4, name="alone", **options)
    joined = keras.layers.Concatenate()([shared(left), shared(right), alone(right)])
    hidden = keras.layers.Dense(4)(keras.layers.Flatten()(joined))
    hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(hidden))
    return keras.Model([left, right], keras.layers.Dense(1)(hidden))


def tied() -> keras.Model:
    """The table is also the output projection: its gradient is dense."""
    ids = keras.Input((3,), dtype="int64", name="ids")
    table = hk.Embedding(ROWS, 4, name="table")
    pooled = keras.layers.GlobalAveragePooling1D()(table(ids))

    class Project(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return keras.ops.matmul(inputs, keras.ops.transpose(table._embeddings))

    return keras.Model(ids, keras.layers.Dense(1)(Project()(pooled)))


class Training:
    """A model under training whose every commit is remembered, to be compared with what is on disk."""

    def __init__(self, model: keras.Model, run_dir: Path, **options: Any) -> None:
        self.model = model
        self.run_dir = run_dir
        self.callback = hk.DeltaCheckpoint(
            run_dir, None, None, serving_graph=False, keep_fulls=100, **options
        )
        self.callback.resume(model)
        self.saved: dict[Position, Values] = {}

    def begin(self) -> None:
        """A full; only what is saved from here on is compared."""
        self.callback.save_full()
        self.saved.clear()
        self.remember()

    def variables(self) -> dict[str, Any]:
        assert self.callback._attachment.binding is not None
        return self.callback._attachment.binding.variables_by_key()

    def remember(self) -> None:
        assert self.callback.position is not None
        self.saved[self.callback.position] = values_of(self.variables())

    def train(self, seed: int, steps: int = 1) -> None:
        random = np.random.default_rng(seed)
        for _ in range(steps):
            size = len(self.model.inputs)
            inputs = [random.integers(0, ROWS, (4, 3)) for _ in range(size)]
            self.model.train_on_batch(inputs if size > 1 else inputs[0], random.random((4, 1), np.float32))
            self.callback.step()

    def check(self) -> None:
        """Every position from the nearest full, and every position through the links alone."""
        first = min(self.saved)
        for position, values in self.saved.items():
            assert_same(replay(self.run_dir, position, values), values)
            assert_same(replay(self.run_dir, position, values, full=first), values)


def assert_same(found: Values, expected: Values) -> None:
    assert found.keys() == expected.keys()
    assert [key for key in expected if found[key] != expected[key]] == []


ACTIONS = ("train", "save", "full", "set_weights")


def run_actions(training: Training, actions: list[tuple[str, int]]) -> set[Tracking]:
    """Trains, saves and compares; returns how the tables were tracked."""
    training.begin()
    for action, seed in [("train", 0), *actions, ("train", 1), ("save", 0)]:
        act(training, action, seed)
    training.check()
    return set(training.callback.tracking.values())


def act(training: Training, action: str, seed: int) -> None:
    if action == "train":
        training.train(seed, steps=1 + seed % 3)
    elif action == "set_weights":
        model = training.model
        model.set_weights([weight + np.float32(seed * 1e-3) for weight in model.get_weights()])
    else:
        training.callback.save() if action == "save" else training.callback.save_full()
        training.remember()


def exactness(
    model: keras.Model, mode: Tracking, *, examples: int = 3, actions: Sequence[str] = ACTIONS, **options: Any
) -> None:
    """All examples are in one chain: the step of a model that is attached once more is traced once more."""
    with tempfile.TemporaryDirectory() as directory:
        training = Training(model, Path(directory), **options)

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(st.lists(st.tuples(st.sampled_from(actions), st.integers(0, 1000)), min_size=4, max_size=10))
        def run(drawn: list[tuple[str, int]]) -> None:
            assert run_actions(training, drawn) == {mode}

        try:
            run()
        finally:
            training.callback.close()


@pytest.mark.parametrize("name", OURS)
def test_row_wise_optimizers_are_exact_and_record(name: str) -> None:
    model = two_tables()
    model.compile(OURS[name](), "mse")
    exactness(model, Tracking.TOUCHED)


@pytest.mark.parametrize("name", FALLING_BACK)
def test_options_that_write_every_row_are_exact_by_comparing(name: str) -> None:
    model = two_tables()
    model.compile(FALLING_BACK[name](), "mse")
    exactness(model, Tracking.CHANGED, examples=2)


@pytest.mark.parametrize("name", STOCK)
def test_stock_layers_and_optimizers_are_exact_by_comparing(name: str) -> None:
    model = two_tables(keras.layers.Embedding)
    model.compile(STOCK[name](), "mse")
    exactness(model, Tracking.CHANGED, examples=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["our momentum", "our Adagrad", "our Adam"])
def test_other_float_types_are_exact(name: str, dtype: str) -> None:
    model = two_tables(dtype=dtype)
    model.compile(OURS[name](), "mse")
    exactness(model, Tracking.TOUCHED, examples=1)


def test_mixed_precision_is_exact() -> None:
    model = two_tables(dtype="mixed_float16")
    model.compile(OURS["our Adagrad, loss scaled"](), "mse")
    exactness(model, Tracking.TOUCHED, examples=1)


def test_tied_weights_are_exact_by_comparing() -> None:
    model = tied()
    model.compile(hk.Adagrad(0.1), "mse")
    exactness(model, Tracking.CHANGED, examples=2)


@pytest.mark.parametrize("option", ["embeddings_regularizer", "embeddings_constraint"])
def test_regularizers_and_constraints_are_exact_by_comparing(option: str) -> None:
    model = two_tables(**{option: "l2" if option == "embeddings_regularizer" else "unit_norm"})
    model.compile(hk.Adagrad(0.1), "mse")
    exactness(model, Tracking.CHANGED, examples=2)


def test_low_rank_adapters_are_exact() -> None:
    model = two_tables(lora_rank=2)
    model.compile(hk.Adagrad(0.1), "mse")
    exactness(model, Tracking.TOUCHED, examples=2)


def test_eager_training_is_exact() -> None:
    model = two_tables()
    model.compile(hk.Adam(0.01), "mse", run_eagerly=True)
    exactness(model, Tracking.TOUCHED, examples=2)


def test_our_layer_with_a_stock_optimizer_is_exact_by_comparing() -> None:
    model = two_tables()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    exactness(model, Tracking.CHANGED, examples=2)


def test_a_stock_layer_with_our_optimizer_is_exact() -> None:
    model = two_tables(keras.layers.Embedding)
    model.compile(hk.Adagrad(0.1), "mse")
    exactness(model, Tracking.TOUCHED, examples=2)


def test_tracking_can_be_chosen_by_table() -> None:
    model = two_tables()
    model.compile(hk.Adagrad(0.1), "mse")
    tracking = {"shared/embeddings": "changed", "alone/embeddings": "changed"}
    exactness(model, Tracking.CHANGED, examples=1, tracking=tracking)
