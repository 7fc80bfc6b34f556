"""Whole tables that are given other values in the middle of training, past every operation that records rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind, Tracking
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import (
    COLUMNS,
    ROWS,
    Build,
    Model,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

VALUES = np.full((ROWS, COLUMNS), 0.25, np.float32)


def load_table(session: Any, model: Model) -> None:
    model.table.load(VALUES, session)


def load_slot(session: Any, model: Model) -> None:
    (slot,) = [v for v in tf.global_variables() if v.op.name == "table/Adagrad"]
    slot.load(VALUES, session)
    assert model.table is not slot


def initialize_table(session: Any, model: Model) -> None:
    session.run(model.table.initializer)


def initialize_everything(session: Any, model: Model) -> None:
    session.run([variable.initializer for variable in tf.global_variables() if variable is not model.step])


OUTSIDE_WRITES = [load_table, load_slot, initialize_table, initialize_everything]


@pytest.mark.parametrize("write", OUTSIDE_WRITES)
@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("is_raw", [False, True], ids=["monitored", "raw"])
def test_a_table_that_is_assigned_is_in_the_next_delta(
    tmp_path: Path, write: Callable[[Any, Model], None], use_resource: bool, is_raw: bool
) -> None:
    with new_graph():
        model = build_model(Build(use_resource=use_resource), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            train(session, model, [[1], [2]])
            assert manifests(tmp_path, Kind.DELTA)[-1].rows_changed == 2
            write(session._tf_sess() if is_raw else session, model)
            train(session, model, [[3], [4]])
            delta = manifests(tmp_path, Kind.DELTA)[-1]
            assert delta.tables["table"].tracking is Tracking.TOUCHED
            assert delta.rows_changed == ROWS
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
            # Once: afterwards rows are recorded as before.
            train(session, model, [[5], [6]])
            assert manifests(tmp_path, Kind.DELTA)[-1].rows_changed == 2


def test_the_first_initialisation_and_a_resume_mark_nothing(tmp_path: Path) -> None:
    for batches in ([[1], [2]], [[3], [4]]):
        with new_graph():
            model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
            with monitored(tmp_path) as session:
                train(session, model, batches)
                assert manifests(tmp_path, Kind.DELTA)[-1].rows_changed == 2


@pytest.mark.parametrize("is_incremental", [False, True])
def test_a_saver_that_restores_in_the_middle_of_training_is_noticed(
    tmp_path: Path, is_incremental: bool
) -> None:
    run_dir = tmp_path / "run"
    with new_graph():
        model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
        other = tf.train.Saver()
        scaffold = tf.train.Scaffold(incremental_save_restore=True)
        # Otherwise the scaffold would take the first Saver of the graph.
        scaffold._saver = tf.train.Saver(sharded=True, incremental_save_restore=True)
        intervals = {"save_checkpoint_steps": 2, "save_incremental_checkpoint_steps": 1}
        with monitored(run_dir, scaffold=scaffold, **intervals) as session:
            raw = session._tf_sess()
            first = manifests(run_dir, Kind.FULL)[0]
            train(session, model, [[1], [2], [3]])
            (scaffold.saver if is_incremental else other).restore(raw, str(run_dir / first.prefix))
            train(session, model, [[4], [5]])
            assert_same_bits(newest_state(run_dir), live_state(raw))
        assert_same_bits(state_of(run_dir, first, links_after(run_dir, first)), newest_state(run_dir))


def test_a_table_on_a_parameter_server_that_is_assigned_is_in_the_next_delta(tmp_path: Path) -> None:
    cluster = fresh_cluster()
    with new_graph():
        with cluster.device():
            model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, master=cluster.target) as session:
            train(session, model, [[1], [2]])
            model.table.load(VALUES, session._tf_sess())
            train(session, model, [[3], [4]])
            assert manifests(tmp_path, Kind.DELTA)[-1].rows_changed == ROWS
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
