"""Deltas of graphs: exact for every optimizer and every kind of variable, and what a restart makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.errors import ModelMismatchError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.small_graphs import (
    ROWS,
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    settle,
    train,
)

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: tf.train.GradientDescentOptimizer(0.1),
    "Adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "Momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "Nesterov": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Ftrl": lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "RMSProp": lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.5),
    "CenteredRMSProp": lambda: tf.train.RMSPropOptimizer(0.1, centered=True),
    "Adadelta": lambda: tf.train.AdadeltaOptimizer(0.1),
    "AdagradDA": lambda: tf.train.AdagradDAOptimizer(0.1, tf.train.get_or_create_global_step()),
    "ProximalAdagrad": lambda: tf.train.ProximalAdagradOptimizer(0.1, l1_regularization_strength=0.01),
    "ProximalGradientDescent": lambda: tf.train.ProximalGradientDescentOptimizer(0.1),
    "Adam": lambda: tf.train.AdamOptimizer(0.1),
}
COMPARED: dict[str, Callable[[], Any]] = {
    "Adam": OPTIMIZERS["Adam"],
    # It applies gradients inside a cond.
    "LossScale": lambda: tf.train.experimental.MixedPrecisionLossScaleOptimizer(
        tf.train.AdagradOptimizer(0.1), "dynamic"
    ),
}
BATCHES = ([1, 5, 5], [2], [29, 0, 13], [5, 7], [8, 9])


@pytest.mark.parametrize(
    "name,parts,use_resource",
    [
        *((name, 2, False) for name in OPTIMIZERS),
        *((name, 1, True) for name in OPTIMIZERS),
        ("Adagrad", 1, False),
        ("Adagrad", 4, False),
        ("Adagrad", 4, True),
        ("Adam", 4, True),
        ("LossScale", 4, True),
    ],
)
def test_deltas_are_exact_for_every_optimizer(
    tmp_path: Path, name: str, parts: int, use_resource: bool
) -> None:
    dtype = tf.int32 if parts == 1 else tf.int64
    with new_graph():
        model = build_model(Build(parts, use_resource, dtype), (OPTIMIZERS | COMPARED)[name]())
        with monitored(tmp_path) as session:
            raw = session._tf_sess()
            train(session, model, BATCHES[:4])
            assert_same_bits(newest_state(tmp_path), live_state(raw))
            train(session, model, BATCHES[4:])
            last = live_state(raw)
    assert_same_bits(newest_state(tmp_path), last)
    deltas = manifests(tmp_path, Kind.DELTA)
    assert len(deltas) == 3
    is_row_wise = name not in COMPARED
    assert {delta.tables["table"].tracking for delta in deltas} == {
        Tracking.TOUCHED if is_row_wise else Tracking.CHANGED
    }
    if is_row_wise:
        assert [delta.tables["table"].rows_changed for delta in deltas] == [3, 5, 2]


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_a_restart_goes_on_bit_for_bit(tmp_path: Path, use_resource: bool) -> None:
    build = Build(parts=3, use_resource=use_resource)

    def run(directory: Path, batches: Any, *, is_killed: bool = False) -> Any:
        with new_graph():
            model = build_model(build, tf.train.AdagradOptimizer(0.1))
            session = monitored(directory)
            train(session, model, batches)
            state = live_state(session._tf_sess())
            if is_killed:
                session._tf_sess().close()
                return state
            session.close()
            return state

    straight = run(tmp_path / "straight", BATCHES)
    run(tmp_path / "killed", BATCHES[:4], is_killed=True)
    assert len(manifests(tmp_path / "killed", Kind.FULL)) == 1
    assert_same_bits(run(tmp_path / "killed", BATCHES[4:]), straight)
    runs = [manifest.position.run for manifest in manifests(tmp_path / "killed")]
    assert runs == [1, 1, 1, 2, 2]


def test_a_chain_goes_on_from_its_tip_and_names_are_never_reused(tmp_path: Path) -> None:
    for _ in range(2):
        with new_graph():
            model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
            with monitored(tmp_path) as session:
                train(session, model, BATCHES[:2])
    links = manifests(tmp_path, Kind.DELTA)
    assert [link.parent.position for link in links[1:] if link.parent] == [
        link.position for link in links[:-1]
    ]


def test_manual_sparse_updates_are_recorded(tmp_path: Path) -> None:
    for use_resource in (False, True):
        with new_graph():
            model = build_model(Build(use_resource=use_resource), tf.train.GradientDescentOptimizer(0.1))
            ones = tf.ones([2, 4])
            scatters = [
                tf.scatter_update(model.table, [3, 4], ones),
                tf.scatter_add(model.table, [5, 6], ones),
                tf.scatter_nd_update(model.table, [[7], [8]], ones),
                tf.group(tf.scatter_sub(model.table, tf.constant([9], tf.int32), ones[:1])),
            ]
            directory = tmp_path / str(use_resource)
            with monitored(directory, save_incremental_checkpoint_steps=1) as session:
                for scatter in scatters:
                    session.run(scatter)
                session.run([model.train], {model.ids: [1]})
                settle()
                last = live_state(session._tf_sess())
                assert_same_bits(newest_state(directory), last)
            table = manifests(directory, Kind.DELTA)[0].tables["table"]
            assert (table.tracking, table.rows_changed) == (Tracking.TOUCHED, 8)


def test_an_assignment_makes_the_table_compared(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        decay = tf.assign(model.table, model.table * 0.5)
        with monitored(tmp_path) as session:
            train(session, model, BATCHES[:1])
            session.run(decay)
            train(session, model, BATCHES[1:2])
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
    delta = manifests(tmp_path, Kind.DELTA)[0].tables["table"]
    assert (delta.tracking, delta.rows_changed) == (Tracking.CHANGED, ROWS)


def test_a_writer_that_is_fetched_by_name_is_recorded(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        (writer,) = [op for op in tf.get_default_graph().get_operations() if op.type == "SparseApplyAdagrad"]
        with monitored(tmp_path) as session:
            session.run([writer.outputs[0], model.step], {model.ids: [11]})
            train(session, model, BATCHES[:2])
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


def test_a_changed_model_is_refused_with_both_shapes_and_nothing_is_lost(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(hidden=10), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            train(session, model, BATCHES)
    before = manifests(tmp_path)
    with new_graph():
        build_model(Build(hidden=20), tf.train.AdagradOptimizer(0.1))
        # What stock TensorFlow raises, and scripts catch.
        problem = "kernel: shape 4x20 in the model, 4x10 in the checkpoint"
        with pytest.raises(tf.errors.InvalidArgumentError, match=problem) as caught:
            monitored(tmp_path)
    assert isinstance(caught.value, ModelMismatchError)
    assert any(problem in line for line in caught.value.problems)
    assert problem in caught.value.message
    assert manifests(tmp_path) == before
    with new_graph():
        model = build_model(Build(hidden=10), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            train(session, model, BATCHES)


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_another_number_of_parts_gets_the_rows_by_id(tmp_path: Path, strategy: str, parts: int) -> None:
    def lookup_all(session: Any, model: Any) -> np.ndarray:
        rows = tf.get_default_graph().get_tensor_by_name("all_rows:0")
        found: np.ndarray = session.run(rows)
        return found

    found: list[np.ndarray] = []
    for count in (4, parts, parts):
        with new_graph():
            model = build_model(Build(parts=count, strategy=strategy), tf.train.AdagradOptimizer(0.1))
            rows = tf.nn.embedding_lookup(model.table, tf.range(ROWS), partition_strategy=strategy)
            tf.identity(rows, name="all_rows")
            with monitored(tmp_path) as session:
                if not found:
                    train(session, model, BATCHES)
                found.append(lookup_all(session._tf_sess(), model))
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_another_number_of_parts_is_refused_when_the_strategy_is_unknown(tmp_path: Path) -> None:
    def build(parts: int) -> Any:
        partitioner = tf.fixed_size_partitioner(parts)
        table = tf.get_variable("table", [ROWS, 4], partitioner=partitioner, use_resource=True)
        loss = tf.add_n([tf.reduce_sum(tf.gather(part, [0, 1])) for part in table])
        step = tf.train.get_or_create_global_step()
        return tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)

    with new_graph():
        step = build(4)
        with monitored(tmp_path) as session:
            session.run(step)
    with new_graph():
        build(2)
        with pytest.raises(ModelMismatchError, match="which ids its parts hold is not known"):
            monitored(tmp_path)
