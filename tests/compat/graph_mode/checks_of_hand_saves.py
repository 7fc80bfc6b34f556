"""Fulls and deltas that a script saves by hand, in a Session that it made itself."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as stock

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind, Tracking, plan
from hotdelta.errors import CommitError, ConfigurationError, DirectoryBusyError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.small_graphs import (
    COLUMNS,
    Build,
    Model,
    assert_same_bits,
    build_model,
    live_state,
    new_graph,
)
from tests.full_disk import small_files_only

v1 = stock.compat.v1


def incremental(**options: Any) -> Any:
    return tf.train.Saver(incremental_save_restore=True, **options)


def started(model_options: Build | None = None) -> tuple[Model, Any, Any]:
    """As most scripts begin: the model, its Saver, and a Session whose variables are initialized."""
    model = build_model(model_options or Build(), tf.train.AdagradOptimizer(0.1))
    saver = incremental()
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return model, saver, session


def train(session: Any, model: Model, *batches: list[int]) -> None:
    for ids in batches:
        session.run(model.train, {model.ids: ids})


def is_reached(run_dir: Path) -> bool:
    """Whether a server that starts now gets to the newest position."""
    found = manifests(run_dir)
    return plan(None, found).target == found[-1].node


def test_what_is_saved_by_hand_is_a_chain_and_is_restored_bit_for_bit(tmp_path: Path) -> None:
    run_dir, build = tmp_path / "run", Build(parts=3, use_resource=True)
    with new_graph():
        model, saver, session = started(build)
        train(session, model, [1, 5], [2])
        assert saver.save(session, str(run_dir / "model.ckpt"), global_step=model.step) == str(
            run_dir / "model.ckpt-2"
        )
        train(session, model, [3, 7])
        path = saver.incremental_save(session, str(run_dir / "model.ckpt"), global_step=model.step)
        assert path == str(run_dir / ".incremental_checkpoint" / "incremental_model.ckpt-3")
        train(session, model, [29])
        saver.incremental_save(session, run_dir / "model.ckpt")
        last = live_state(session)
        session.close()
    full, first, second = manifests(run_dir)
    assert [full.kind, first.kind, second.kind] == [Kind.FULL, Kind.DELTA, Kind.DELTA]
    assert [full.step, first.step, second.step] == [2, 3, 4]
    assert (first.tables["table"].tracking, first.rows_changed) == (Tracking.TOUCHED, 2)
    assert second.rows_changed == 1
    assert_same_bits(newest_state(run_dir), last)
    assert is_reached(run_dir)
    assert (run_dir / "model.ckpt-2.meta").exists()
    with new_graph():
        build_model(build, tf.train.AdagradOptimizer(0.1))
        with tf.Session() as session:
            incremental().restore(session, tf.train.latest_checkpoint(str(run_dir)))
            assert_same_bits(live_state(session), last)


def test_a_session_that_was_restored_goes_on_with_the_chain(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        saver.save(session, tmp_path / "model.ckpt")
        train(session, model, [1])
        saver.incremental_save(session, tmp_path / "model.ckpt")
        session.close()
    tip = manifests(tmp_path)[-1]
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        saver = incremental()
        with tf.Session() as session:
            saver.restore(session, tf.train.latest_checkpoint(str(tmp_path)))
            train(session, model, [4, 9])
            saver.incremental_save(session, tmp_path / "model.ckpt")
            newest = manifests(tmp_path)[-1]
            assert (newest.parent, newest.rows_changed) == (tip.node, 2)
            assert saver.save(session, tmp_path / "model.ckpt").startswith(str(tmp_path / "model.ckpt-2"))
            assert_same_bits(newest_state(tmp_path), live_state(session))
    assert is_reached(tmp_path)
    assert saver.last_checkpoints[-1] == tf.train.latest_checkpoint(str(tmp_path))


def by_itself(session: Any, model: Model) -> None:
    """A row writer that is fetched alone, past the operation that waits for its recorder."""
    (writer,) = [
        operation
        for operation in session.graph.get_operations()
        if operation.type == "SparseApplyAdagrad" or operation.type == "ResourceSparseApplyAdagradV2"
    ]
    session.run(writer, {model.ids: [6]})


def by_callable(session: Any, model: Model) -> None:
    session.make_callable(model.train, [model.ids])([6])


def by_load(session: Any, model: Model) -> None:
    model.table.load(np.full((30, COLUMNS), 0.25, np.float32), session)


def by_initializer(session: Any, model: Model) -> None:
    session.run(tf.global_variables_initializer())


def test_nothing_that_is_written_is_missed(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        saver.save(session, tmp_path / "model.ckpt")
        for write in (by_itself, by_callable, by_load, by_initializer):
            train(session, model, [2])
            write(session, model)
            saver.incremental_save(session, tmp_path / "model.ckpt")
            assert_same_bits(newest_state(tmp_path), live_state(session))
        session.close()


def test_a_saver_that_comes_after_the_first_run_compares(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Recorders that are added then would never run in that Session."""
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            saver = incremental(var_list=tf.global_variables())
            for step, ids in enumerate([[1], [5, 6], [7]]):
                train(session, model, ids)
                save = saver.save if step == 0 else saver.incremental_save
                save(session, tmp_path / "model.ckpt", global_step=10 * step)
                assert_same_bits(newest_state(tmp_path), live_state(session))
    assert [manifest.step for manifest in manifests(tmp_path)] == [0, 10, 20]
    newest = manifests(tmp_path)[-1]
    assert (newest.tables["table"].tracking, newest.rows_changed) == (Tracking.CHANGED, 1)
    assert "a Session ran before the Saver was made" in caplog.text


def test_a_saver_that_cannot_save_deltas_does_not_keep_another_from_recording(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        incremental(var_list={"renamed": model.table})
        saver = incremental()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            saver.save(session, tmp_path / "model.ckpt")
            train(session, model, [1])
            saver.incremental_save(session, tmp_path / "model.ckpt")
    assert manifests(tmp_path)[-1].tables["table"].tracking is Tracking.TOUCHED


def test_a_graph_that_was_made_ready_by_half_is_not_run() -> None:
    """Its recorders would write to flags that nothing initializes."""

    def refuse_markers(make: Any, **options: Any) -> Any:
        if "restored" in str(options["name"]):
            raise ValueError("not in this scope")
        return make(**options)

    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        incremental()
        with tf.Session() as session, v1.variable_creator_scope(refuse_markers):
            for _ in range(2):
                with pytest.raises(ValueError, match="not in this scope"):
                    session.run(tf.global_variables_initializer())


def test_a_save_that_fails_raises_and_its_rows_are_in_the_next(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        saver.save(session, tmp_path / "model.ckpt")
        for save in (saver.incremental_save, saver.save):
            train(session, model, [3])
            with small_files_only(), pytest.raises(CommitError):
                save(session, tmp_path / "model.ckpt")
        saver.incremental_save(session, tmp_path / "model.ckpt")
        assert_same_bits(newest_state(tmp_path), live_state(session))
        session.close()


def test_a_delta_without_a_full_is_a_full_and_one_without_a_change_is_none(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        path = saver.incremental_save(session, tmp_path / "model.ckpt")
        assert path == str(tmp_path / "model.ckpt-0")
        assert saver.incremental_save(session, tmp_path / "model.ckpt") == path
        assert len(manifests(tmp_path)) == 1
        train(session, model, [1])
        session.close()


def test_a_model_that_was_restored_elsewhere_begins_a_chain(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        first = saver.save(session, tmp_path / "one" / "model.ckpt")
        session.close()
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        saver = incremental()
        with tf.Session() as session:
            saver.restore(session, first)
            train(session, model, [1])
            saver.save(session, tmp_path / "two" / "model.ckpt")
            assert_same_bits(newest_state(tmp_path / "two"), live_state(session))
    assert len(manifests(tmp_path / "one")) == 1


def test_a_chain_that_the_session_was_not_restored_from_is_not_saved_over(tmp_path: Path) -> None:
    """Servers would follow an untrained model."""
    with new_graph():
        _, saver, session = started()
        saver.save(session, tmp_path / "model.ckpt")
        session.close()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(ConfigurationError, match="was not restored from"):
                saver.save(session, tmp_path / "model.ckpt")
            path = saver.save(session, tmp_path / "other" / "model.ckpt")
            assert path == str(tmp_path / "other" / "model.ckpt-0")
    assert len(manifests(tmp_path)) == 1


def test_a_save_returns_what_was_committed_also_when_it_is_not_what_was_asked_for(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        saver.save(session, tmp_path / "model.ckpt")
        train(session, model, [1])
        # Its closing delta is committed, and is the newest state.
        (tmp_path / "model.ckpt-1.index").mkdir()
        with pytest.raises(CommitError):
            saver.save(session, tmp_path / "model.ckpt")
        delta = tmp_path / ".incremental_checkpoint" / "incremental_model.ckpt-1"
        assert saver.incremental_save(session, tmp_path / "model.ckpt") == str(delta)
        for file in [*tmp_path.glob("model.ckpt-0*"), *delta.parent.glob("*")]:
            file.unlink()
        train(session, model, [2])
        path = saver.incremental_save(session, tmp_path / "model.ckpt")
        assert path == str(tmp_path / "model.ckpt-2")
        assert saver.incremental_save(session, tmp_path / "model.ckpt") == path
        assert_same_bits(newest_state(tmp_path), live_state(session))
        session.close()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with new_graph():
        _, saver, session = started()
        path = tmp_path / "model.ckpt"
        with pytest.raises(ConfigurationError, match=r"called model\.ckpt, not 'clicks'"):
            saver.save(session, tmp_path / "clicks")
        with pytest.raises(ConfigurationError, match="write_state=False"):
            saver.save(session, path, write_state=False)
        with pytest.raises(ConfigurationError, match="an address"):
            saver.save(session, "http://bucket/model.ckpt")
        with pytest.raises(ConfigurationError, match="not incremental"):
            tf.train.Saver().incremental_save(session, path)
        with v1.Session() as other:
            other.run(tf.global_variables_initializer())
            with pytest.raises(ConfigurationError, match=r"no Session of hotdelta\.compat\.v1"):
                saver.save(other, path)
        saver.save(session, path)
        with pytest.raises(ConfigurationError, match="another directory"):
            saver.incremental_save(session, tmp_path / "other" / "model.ckpt")
        session.close()
    assert not (tmp_path / "other").exists()


def test_a_writer_that_comes_after_the_first_run_is_refused_at_the_next_save(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        saver.save(session, tmp_path / "model.ckpt")
        session.run(tf.scatter_update(model.table, [4], tf.zeros([1, COLUMNS])))
        with pytest.raises(ConfigurationError, match="not there when the graph was made ready"):
            saver.incremental_save(session, tmp_path / "model.ckpt")
        with pytest.raises(ConfigurationError, match="partial_run"):
            session.partial_run_setup([model.table.initializer])
        session.close()


def test_a_graph_that_is_finalized_is_saved_too_and_let_go_when_its_session_is_closed(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        gone = weakref.ref(session)
        session.graph.finalize()
        for ids in ([1], [2]):
            train(session, model, ids)
            saver.incremental_save(session, tmp_path / "model.ckpt")
        assert session.graph.finalized
        assert_same_bits(newest_state(tmp_path), live_state(session))
        session.close()
        del session
    gc.collect()
    assert gone() is None


def test_a_graph_without_a_global_step_needs_one_for_each_save(tmp_path: Path) -> None:
    with new_graph():
        table = tf.get_variable("table", [10, 2])
        ids = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
        step = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        saver = incremental()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(ConfigurationError, match="global_step"):
                saver.save(session, tmp_path / "model.ckpt")
            saver.save(session, tmp_path / "model.ckpt", global_step=5)
            session.run(step, {ids: [3]})
            saver.incremental_save(session, tmp_path / "model.ckpt", global_step=6)
            assert_same_bits(newest_state(tmp_path), live_state(session))
    assert [manifest.step for manifest in manifests(tmp_path)] == [5, 6]


def test_two_sessions_do_not_save_into_one_directory(tmp_path: Path) -> None:
    with new_graph():
        model, saver, session = started()
        path = saver.save(session, tmp_path / "model.ckpt")
        with tf.Session() as other:
            saver.restore(other, path)
            with pytest.raises(DirectoryBusyError):
                saver.incremental_save(other, tmp_path / "model.ckpt")
            session.close()
            train(other, model, [1])
            saver.incremental_save(other, tmp_path / "model.ckpt")
            assert_same_bits(newest_state(tmp_path), live_state(other))
