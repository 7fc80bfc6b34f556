"""The optimizers of DeepRec: their rules, against numpy, and their chains, against a run that was never killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.history.verification import directory_of
from hotdelta.compat.v1.graph.saved_variables import find_saved_variables
from hotdelta.compat.v1.graph.served_variables import served_variables
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import (
    COLUMNS,
    ROWS,
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)

RATE, BETA1, BETA2, EPSILON = (np.float32(each) for each in (0.05, 0.9, 0.99, 1e-6))
PERIOD, DISCOUNT, LEAST = 3, np.float32(0.5), np.float32(0.1)
ONE = np.float32(1)
STEPS = 12
State = dict[str, np.ndarray]


def adam_async() -> Any:
    return tf.train.AdamAsyncOptimizer(RATE, BETA1, BETA2, EPSILON)


def rmsprop() -> Any:
    return tf.train.AdamAsyncOptimizer(RATE, BETA1, BETA2, EPSILON, apply_sparse_rmsprop=True)


def adagrad_decay() -> Any:
    return tf.train.AdagradDecayOptimizer(
        RATE,
        tf.train.get_or_create_global_step(),
        initial_accumulator_value=float(LEAST),
        accumulator_decay_step=PERIOD,
        accumulator_decay_rate=float(DISCOUNT),
    )


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "AdamAsync": adam_async,
    "RMSProp": rmsprop,
    "AdagradDecay": adagrad_decay,
}


def adam_rows(state: State, ids: Any, grad: Any, step: int) -> None:
    alpha = RATE * np.sqrt(ONE - state["beta2_power"]) / (ONE - state["beta1_power"])
    state["m"][ids] = state["m"][ids] * BETA1 + grad * (ONE - BETA1)
    state["v"][ids] = state["v"][ids] * BETA2 + np.square(grad) * (ONE - BETA2)
    state["table"][ids] -= state["m"][ids] * alpha / (np.sqrt(state["v"][ids]) + EPSILON)
    if len(grad):
        state["beta1_power"] = state["beta1_power"] * BETA1
        state["beta2_power"] = state["beta2_power"] * BETA2


def rmsprop_rows(state: State, ids: Any, grad: Any, step: int) -> None:
    state["v"][ids] = state["v"][ids] * BETA2 + np.square(grad) * (ONE - BETA2)
    state["m"][ids] = state["m"][ids] * BETA1 + ONE / np.sqrt(state["v"][ids] + EPSILON) * RATE * grad
    state["table"][ids] -= state["m"][ids]


def decay_rows(state: State, ids: Any, grad: Any, step: int) -> None:
    is_due = (step + 1) // PERIOD > state["accumulator_decay_power"][ids]
    discounted = np.maximum(state["accumulator"][ids] * DISCOUNT, LEAST)
    state["accumulator"][ids] = np.where(is_due[:, None], discounted, state["accumulator"][ids])
    state["accumulator_decay_power"][ids] += is_due
    state["accumulator"][ids] += np.square(grad)
    state["table"][ids] -= RATE * grad * (ONE / np.sqrt(state["accumulator"][ids]))


RULES = {"AdamAsync": adam_rows, "RMSProp": rmsprop_rows, "AdagradDecay": decay_rows}
SLOTS = {
    "AdamAsync": ("m", "v", "beta1_power", "beta2_power"),
    "RMSProp": ("m", "v", "beta1_power", "beta2_power"),
    "AdagradDecay": ("accumulator", "accumulator_decay_power"),
}
# TensorFlow takes roots one by one as numpy does; the inverse of a root it estimates and corrects, to the last bits.
TOLERANCE = {"AdamAsync": 0.0, "RMSProp": 1e-6, "AdagradDecay": 1e-6}


def stream(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids, many of them twice and more, and the gradients of their rows; one batch is empty."""
    random = np.random.default_rng(seed)
    sizes = [0 if step == 5 else int(random.integers(1, 40)) for step in range(STEPS)]
    return [
        (random.integers(0, 12, size), random.normal(size=(size, COLUMNS)).astype(np.float32))
        for size in sizes
    ]


def summed(ids: np.ndarray, grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One row for each id, in the order in which TensorFlow adds."""
    unique, places = np.unique(ids, return_inverse=True)
    total = np.zeros((len(unique), COLUMNS), np.float32)
    np.add.at(total, places, grad)
    return unique, total


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_move_as_the_rule_says(name: str, use_resource: bool) -> None:
    start = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    with new_graph():
        step = tf.train.get_or_create_global_step()
        table = tf.get_variable("table", initializer=start, use_resource=use_resource)
        ids, grad = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, COLUMNS])
        optimizer = OPTIMIZERS[name]()
        slices = tf.IndexedSlices(grad, ids, tf.constant([ROWS, COLUMNS]))
        update = optimizer.apply_gradients([(slices, table)], global_step=step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            live = {"table": table, **{slot: optimizer.get_slot(table, slot) for slot in SLOTS[name]}}
            expected = session.run(live)
            for number, (batch, rows) in enumerate(stream(2)):
                session.run(update, {ids: batch, grad: rows})
                RULES[name](expected, *summed(batch, rows), number)
            found = session.run(live)
    assert sorted(found) == sorted(expected)
    for key, value in found.items():
        if TOLERANCE[name]:
            np.testing.assert_allclose(value, expected[key], TOLERANCE[name], TOLERANCE[name], err_msg=key)
        else:
            np.testing.assert_array_equal(value, expected[key], err_msg=key)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("name", ["AdamAsync", "AdagradDecay"])
def test_a_dense_gradient_moves_all_rows_by_the_same_rule(name: str, use_resource: bool) -> None:
    start = np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    gradients = np.random.default_rng(4).normal(size=(STEPS, ROWS, COLUMNS)).astype(np.float32)
    with new_graph():
        step = tf.train.get_or_create_global_step()
        table = tf.get_variable("table", initializer=start, use_resource=use_resource)
        bias = tf.get_variable("bias", initializer=np.float32(2), use_resource=use_resource)
        grad = tf.placeholder(tf.float32, [ROWS, COLUMNS])
        optimizer = OPTIMIZERS[name]()
        pairs = [(grad, table), (grad[0, 0], bias)]
        update = optimizer.apply_gradients(pairs, global_step=step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            live = {"table": table, **{slot: optimizer.get_slot(table, slot) for slot in SLOTS[name]}}
            expected = session.run(live)
            for number, rows in enumerate(gradients):
                session.run(update, {grad: rows})
                RULES[name](expected, slice(None), rows, number)
            found, number = session.run([live, bias])
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key], 1e-6, 1e-6, err_msg=key)
    assert number != 2


@pytest.mark.I1
@pytest.mark.parametrize(
    "name,build",
    [
        ("AdamAsync", Build(parts=3, use_resource=True)),
        ("RMSProp", Build()),
        ("AdagradDecay", Build(parts=3)),
    ],
)
def test_only_rows_of_the_step_are_in_a_delta_and_a_killed_run_goes_on(
    tmp_path: Path, name: str, build: Build
) -> None:
    batches = ([1, 5, 5], [2], [29, 0, 13], [5, 7], [8, 9])

    def run(directory: Path, batches: Sequence[Any], *, is_killed: bool = False) -> State:
        with new_graph():
            model = build_model(build, OPTIMIZERS[name]())
            session = monitored(directory)
            train(session, model, batches)
            state = live_state(session._tf_sess())
            (session._tf_sess() if is_killed else session).close()
        return state

    straight = run(tmp_path / "straight", batches)
    killed = tmp_path / "killed"
    assert_same_bits(run(killed, batches[:4], is_killed=True), newest_state(killed))
    assert_same_bits(run(killed, batches[4:]), straight)
    deltas = manifests(killed, Kind.DELTA)
    assert {delta.tables["table"].tracking for delta in deltas} == {Tracking.TOUCHED}
    assert [delta.tables["table"].rows_changed for delta in deltas[:2]] == [3, 5]
    assert served_keys(killed) == {"kernel", "table"}


@pytest.mark.I1
def test_parameter_servers_write_the_rows_of_every_slot(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    states = []
    for batches in (([1, 2], [5, 7, 7], [29]), ([1],)):
        with new_graph(), cluster.device():
            model = build_model(Build(parts=4, use_resource=True), adagrad_decay())
            session = monitored(tmp_path, master=cluster.target, save_incremental_checkpoint_steps=1)
            states.append(live_state(session._tf_sess()))
            train(session, model, batches)
            states.append(live_state(session._tf_sess()))
            assert_same_bits(newest_state(tmp_path), states[-1])
            session.close()
        cluster.forget()
    assert_same_bits(states[1], states[2])
    assert states[1]["table/AdagradDecay_1"].tolist().count(1) == 1


def served_keys(directory: Path) -> set[str]:
    """What the newest delta has for servers."""
    delta = manifests(directory, Kind.DELTA)[-1]
    training = {file.name for file in delta.files if file.role == names.ROLE_TRAINING}
    shards = [file.name for file in delta.files if ".data-" in file.name]
    with BundleReader(directory_of(directory, Kind.DELTA), delta.prefix) as reader:
        return {
            name.rpartition("-")[0]
            for name, entry in reader.entries.items()
            if name.endswith(("-rows", "-value")) and shards[entry.shard] not in training
        }


def test_no_operation_of_a_step_makes_anything_as_large_as_the_table() -> None:
    rows = 50_000
    for make in OPTIMIZERS.values():
        with new_graph():
            model = build_model(Build(use_resource=True, rows=rows), make())
            trace = tf.RunMetadata()
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
                session.run(model.train, {model.ids: [1, 5, 5]}, options, trace)
        largest = max(
            output.tensor_description.allocation_description.requested_bytes
            for device in trace.step_stats.dev_stats
            for node in device.node_stats
            for output in node.output
        )
        assert 0 < largest < rows


def test_each_variable_has_powers_of_its_own() -> None:
    with new_graph():
        tables = [tf.get_variable(name, [ROWS, COLUMNS]) for name in ("one", "other")]
        ids = tf.placeholder(tf.int64, [None])
        losses = [tf.reduce_sum(tf.nn.embedding_lookup(table, ids)) for table in tables]
        optimizer = tf.train.AdamAsyncOptimizer(beta1=0.5, beta2=0.25)
        first, both = optimizer.minimize(losses[0]), optimizer.minimize(losses[0] + losses[1])
        powers = [optimizer.get_slot(table, "beta1_power") for table in tables]
        assert [power.op.name for power in powers] == ["one/AdamAsync_2", "other/AdamAsync_2"]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for train_op in (first, first, both):
                session.run(train_op, {ids: [1, 1, 2]})
            assert session.run(powers) == [0.5**4, 0.5**2]


def test_powers_are_kept_from_serving_in_an_imported_graph_too() -> None:
    with new_graph():
        build_model(Build(parts=2), adam_async())
        meta_graph = tf.train.export_meta_graph()
    with new_graph():
        tf.train.import_meta_graph(meta_graph)
        saved = find_saved_variables(tf.global_variables())
        served = {item.key for item in served_variables(saved)}
        assert not [key for key in served if "AdamAsync" in key]
        assert len(saved) == len(served) + 10


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({"global_step": None}, "global_step is None"),
        ({"global_step": 3}, "global_step is 3"),
        ({"initial_accumulator_value": 0.0}, "initial_accumulator_value is 0.0"),
        ({"accumulator_decay_step": 0}, "accumulator_decay_step is 0"),
        ({"accumulator_decay_rate": 1.0}, "accumulator_decay_rate is 1.0"),
        ({"use_locking": True}, "nothing locks them together"),
    ],
)
def test_what_cannot_decay_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with new_graph():
        given = {"global_step": tf.train.get_or_create_global_step(), **arguments}
        with pytest.raises(ConfigurationError, match=problem):
            tf.train.AdagradDecayOptimizer(0.1, **given)


def test_adam_async_refuses_to_lock_what_it_cannot() -> None:
    with pytest.raises(ConfigurationError, match="nothing locks them together"):
        tf.train.AdamAsyncOptimizer(use_locking=True)
