"""Scripts of TensorFlow 1 that name the address of a store where they named a directory."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind
from hotdelta.errors import ConfigurationError
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.spool import SPOOL_VARIABLE, default_directory
from hotdelta.remote.stores.opening import open_store
from tests.compat.graph_mode.small_estimators import batches, model_fn
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)
from tests.waiting import wait_until


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Begins on another machine, whose spools are empty."""

    def go_to(name: str) -> None:
        monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / name))

    go_to("one")
    return go_to


def in_log(address: str, kind: Kind) -> list[str]:
    return [str(at) for at in CommitLog(open_store(address)).positions_after(kind, None)]


def test_a_monitored_session_goes_on_on_another_machine(address: str, machine: Any) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(address) as session:  # type: ignore[arg-type]
            # Until then the next full takes its place.
            wait_until(lambda: in_log(address, Kind.FULL) == ["1.1"], "the first full is published")
            train(session, model, [[1], [2], [3], [4], [5]])
            last = live_state(session)
    assert in_log(address, Kind.FULL) == ["1.1", "1.4"]
    assert in_log(address, Kind.DELTA) == ["1.2", "1.3", "1.4"]
    machine("two")
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(address) as session:  # type: ignore[arg-type]
            assert_same_bits(live_state(session), last)
            train(session, model, [[6], [7]])
    assert in_log(address, Kind.DELTA)[-1].startswith("2.")


def test_a_script_that_saves_by_hand_restores_on_another_machine(address: str, machine: Any) -> None:
    def saver() -> Any:
        return tf.train.Saver(incremental_save_restore=True)

    with new_graph():
        model, by_hand = build_model(Build(), tf.train.AdagradOptimizer(0.1)), saver()
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        session.run(model.train, {model.ids: [1, 5]})
        path = by_hand.save(session, f"{address}/model.ckpt")
        assert path == str(default_directory(address) / "model.ckpt-1")
        session.run(model.train, {model.ids: [2]})
        by_hand.incremental_save(session, f"{address}/model.ckpt")
        last = live_state(session)
        session.close()
    machine("two")
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with tf.Session() as session:
            saver().restore(session, tf.train.latest_checkpoint(address))
            assert_same_bits(live_state(session), last)
            with pytest.raises(ConfigurationError, match=r"called model\.ckpt.*/model\.ckpt; the step"):
                saver().save(session, f"{address}/other.ckpt")


def test_an_estimator_trains_at_an_address_and_answers_on_another_machine(address: str, machine: Any) -> None:
    def estimator() -> Any:
        config = tf.estimator.RunConfig(
            tf_random_seed=1,
            log_step_count_steps=None,
            save_checkpoints_steps=4,
            save_incremental_checkpoint_steps=2,
        )
        return tf.estimator.Estimator(model_fn, address, config)

    first = estimator()
    assert Path(first.model_dir) == default_directory(address)
    first.train(batches(), steps=5)
    answers = [answer["score"] for answer in first.predict(batches(2))]
    machine("two")
    other = estimator()
    np.testing.assert_array_equal([answer["score"] for answer in other.predict(batches(2))], answers)
    other.train(batches(), max_steps=5)
    assert in_log(address, Kind.DELTA)[-1].startswith("1."), "it is trained that far already"
    other.train(batches(), steps=2)
    assert in_log(address, Kind.DELTA)[-1].startswith("2.")


def test_the_bookmark_of_a_reader_is_asked_for_at_an_address(address: str, machine: Any) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        tf.train.bookmark(tf.constant(7, tf.int64))
        with monitored(address) as session:  # type: ignore[arg-type]
            train(session, model, [[1], [2]])
    machine("two")
    assert tf.train.latest_bookmark(address) == 7
