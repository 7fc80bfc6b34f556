"""Models in the manner of DeepRec's examples, on embedding variables: trained, resumed, exported and served.

Each has another option, and another optimizer. The server answers as the trainer's Session does, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from exporter.export import ExportOptions
from hotdelta.chain.format.manifest import Kind
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.small_graphs import monitored, new_graph, settle
from tests.loader.step_model import serving, wait_for_position

EXAMPLES, HISTORY, WIDTH = 12, 5, 4
Features = Mapping[str, Any]


@dataclass
class Model:
    features: Features
    answers: dict[str, Any]
    train: Any


def variable(name: str, option: Any, width: int = WIDTH) -> Any:
    initializer = tf.truncated_normal_initializer(seed=len(name))
    return tf.get_embedding_variable(name, width, initializer=initializer, ev_option=option)


def dense(inputs: Any, units: int, name: str, activation: Any = None) -> Any:
    initializer = tf.glorot_uniform_initializer(seed=units)
    return tf.layers.dense(inputs, units, activation, kernel_initializer=initializer, name=name)


def wide_and_deep(features: Features, option: Any) -> Any:
    keys = {
        name: tf.feature_column.categorical_column_with_embedding(name, dtype=tf.int64, ev_option=option)
        for name in ("user", "item")
    }
    deep_columns = [tf.feature_column.embedding_column(column, WIDTH) for column in keys.values()]
    wide_columns = [tf.feature_column.embedding_column(column, 1, "sum") for column in keys.values()]
    given = {name: features[name][:, tf.newaxis] for name in keys}
    with tf.variable_scope("deep"):
        layer = tf.feature_column.input_layer(given, deep_columns)
        deep = dense(dense(tf.concat([layer, features["numbers"]], 1), 8, "hidden", tf.nn.relu), 1, "logit")
    with tf.variable_scope("wide"):
        wide = tf.reduce_sum(tf.feature_column.input_layer(given, wide_columns), axis=1, keepdims=True)
    return deep + wide


def deep_fm(features: Features, option: Any) -> Any:
    names = ("user", "item", "shop")
    rows = tf.stack(
        [tf.nn.embedding_lookup(variable(f"{name}_rows", option), features[name]) for name in names], axis=1
    )
    first = [tf.nn.embedding_lookup(variable(f"{name}_first", option, 1), features[name]) for name in names]
    square_of_sum = tf.square(tf.reduce_sum(rows, axis=1))
    sum_of_squares = tf.reduce_sum(tf.square(rows), axis=1)
    second = 0.5 * tf.reduce_sum(square_of_sum - sum_of_squares, axis=1, keepdims=True)
    deep = dense(tf.reshape(rows, [-1, len(names) * WIDTH]), 6, "hidden", tf.nn.relu)
    return tf.add_n(first) + second + dense(deep, 1, "logit")


def dlrm(features: Features, option: Any) -> Any:
    bottom = dense(features["numbers"], WIDTH, "bottom", tf.nn.relu)
    rows = [
        tf.nn.embedding_lookup(variable(name, option), features[name]) for name in ("user", "item", "shop")
    ]
    stacked = tf.stack([bottom, *rows], axis=1)
    products = tf.reshape(tf.matmul(stacked, stacked, transpose_b=True), [-1, 16])
    return dense(dense(tf.concat([bottom, products], 1), 6, "top", tf.nn.relu), 1, "logit")


def dssm(features: Features, option: Any) -> Any:
    def tower(name: str) -> Any:
        rows = tf.nn.embedding_lookup(variable(name, option), features[name])
        return tf.nn.l2_normalize(dense(rows, 5, f"{name}_tower", tf.tanh), axis=1)

    return 5.0 * tf.reduce_sum(tower("user") * tower("item"), axis=1, keepdims=True)


def din(features: Features, option: Any) -> Any:
    """The items that a user has seen, and the one that is judged, are rows of one variable."""
    items = variable("item", option)
    seen = tf.nn.embedding_lookup(items, features["history"])
    judged = tf.nn.embedding_lookup(items, features["item"])
    beside = tf.tile(judged[:, tf.newaxis], [1, HISTORY, 1])
    attention = dense(tf.concat([seen, beside, seen * beside], axis=2), 1, "attention")
    is_there = tf.cast(features["history"] > 0, tf.float32)[:, :, tf.newaxis]
    interest = tf.reduce_sum(tf.sigmoid(attention) * is_there * seen, axis=1)
    users = tf.nn.embedding_lookup(variable("user", option), features["user"])
    return dense(tf.concat([users, judged, interest], axis=1), 1, "logit")


def mmoe(features: Features, option: Any) -> Any:
    """Two tasks over shared experts, and bags of items in a sparse look-up."""
    history = features["history"]
    bags = tf.SparseTensor(
        tf.where(history > 0), tf.boolean_mask(history, history > 0), tf.shape(history, out_type=tf.int64)
    )
    items = tf.nn.safe_embedding_lookup_sparse(variable("item", option), bags, None, "mean")
    users = tf.nn.embedding_lookup(variable("user", option), features["user"])
    inputs = tf.concat([users, items], axis=1)
    experts = tf.stack([dense(inputs, 4, f"expert_{number}", tf.nn.relu) for number in range(3)], axis=1)
    logits = []
    for task in ("click", "buy"):
        gate = tf.nn.softmax(dense(inputs, 3, f"{task}_gate"))
        logits.append(dense(tf.reduce_sum(gate[:, :, tf.newaxis] * experts, axis=1), 1, f"{task}_logit"))
    return tf.concat(logits, axis=1)


def option(**words: Any) -> Any:
    return tf.EmbeddingVariableOption(max_rows=10_000, **words)


@dataclass(frozen=True)
class Case:
    logits: Callable[[Features, Any], Any]
    option: Callable[[], Any]
    optimizer: Callable[[], Any]


# The others in `make soak`.
OFTEN = ("DIN", "MMoE")
CASES = {
    "wide and deep": Case(wide_and_deep, option, lambda: tf.train.AdagradOptimizer(0.1)),
    "DeepFM": Case(
        deep_fm,
        lambda: option(filter_option=tf.CounterFilter(2)),
        lambda: tf.train.AdamOptimizer(0.01),
    ),
    "DLRM": Case(
        dlrm,
        lambda: option(evict_option=tf.GlobalStepEvict(3)),
        lambda: tf.train.GradientDescentOptimizer(0.1),
    ),
    "DSSM": Case(
        dssm,
        lambda: option(
            filter_option=tf.CBFFilter(2, max_element_size=400, false_positive_probability=0.01),
            init_option=tf.InitializerOption(default_value_no_permission=0.1),
        ),
        lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    ),
    "DIN": Case(
        din,
        lambda: option(filter_option=tf.CounterFilter(2), evict_option=tf.GlobalStepEvict(4)),
        lambda: tf.train.AdamAsyncOptimizer(0.01),
    ),
    "MMoE": Case(
        mmoe,
        lambda: option(evict_option=tf.L2WeightEvict(0.2)),
        lambda: tf.train.AdagradDecayOptimizer(0.1, tf.train.get_or_create_global_step()),
    ),
}


def build(case: Case) -> Model:
    features = {
        **{name: tf.placeholder(tf.int64, [None]) for name in ("user", "item", "shop")},
        "history": tf.placeholder(tf.int64, [None, HISTORY]),
        "numbers": tf.placeholder(tf.float32, [None, 3]),
    }
    logits = case.logits(features, case.option())
    goal = tf.cast(features["user"] % 2, tf.float32)[:, tf.newaxis] * tf.ones_like(logits)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=goal, logits=logits))
    step = tf.train.get_or_create_global_step()
    train = case.optimizer().minimize(loss, global_step=step)
    # A signature may have inputs that its outputs do not need.
    return Model(features, {"probability": tf.sigmoid(logits)}, train)


def examples(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    first = 20 * seed
    return {
        "user": draw.integers(first, first + 40, EXAMPLES),
        "item": draw.integers(-20, 60, EXAMPLES) * 2**40,
        "shop": draw.integers(0, 9, EXAMPLES),
        "history": draw.integers(-10, 60, (EXAMPLES, HISTORY)) * 2**40,
        "numbers": draw.normal(size=(EXAMPLES, 3)).astype(np.float32),
    }


def fed(model: Model, batch: Mapping[str, np.ndarray]) -> dict[Any, np.ndarray]:
    return {model.features[name]: value for name, value in batch.items()}


def step(session: Any, model: Model, *seeds: int) -> None:
    for seed in seeds:
        session.run(model.train, fed(model, examples(seed)))
        settle()


def answers(session: Any, model: Model) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = session._tf_sess().run(model.answers, fed(model, examples(99) | _asked()))
    return found


def _asked() -> dict[str, np.ndarray]:
    """Keys that were trained, and some that nobody knows."""
    return {"user": np.arange(0, 10 * EXAMPLES, 10), "item": np.arange(-3, EXAMPLES - 3) * 2**40}


@pytest.mark.I1
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.soak]) for name in CASES]
)
def test_a_model_is_served_as_it_is_trained_and_goes_on_after_a_restart(tmp_path: Path, name: str) -> None:
    run_dir, case = tmp_path / "run", CASES[name]
    batch = examples(99) | _asked()
    expected: dict[str, np.ndarray] = {}
    with new_graph():
        model = build(case)
        with monitored(run_dir, save_incremental_checkpoint_steps=1) as session:
            step(session, model, 0, 1)
            export(run_dir, tmp_path / "export", case)
            with serving(tmp_path) as loader:
                for seed in (2, 3, 4, 5, 2):
                    before = answers(session, model)
                    step(session, model, seed)
                    expected = answers(session, model)
                    assert not np.array_equal(before["probability"], expected["probability"])
                    wait_for_position(loader, manifests(run_dir, Kind.DELTA)[-1].position)
                    asked = {key: batch[key] for key in model.features}
                    found, _ = loader.predict("serving_default", asked)
                    np.testing.assert_array_equal(
                        found["probability"].view(np.int32), expected["probability"].view(np.int32)
                    )
    with new_graph():
        model = build(case)
        with monitored(run_dir) as session:
            np.testing.assert_array_equal(answers(session, model)["probability"], expected["probability"])


def export(run_dir: Path, export_dir: Path, case: Case) -> None:
    with new_graph():
        model = build(case)
        signature = GraphSignature(dict(model.features), model.answers)
        export_chain({"serving_default": signature}, run_dir, export_dir, ExportOptions(save_incr_model=True))
