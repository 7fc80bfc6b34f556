"""Who only reads a chain gets its newest delta, or is told of it; who goes on counts from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind, Manifest, directory_of
from hotdelta.compat.v1.estimator.warm_start import WarmStartSettings, warm_start
from hotdelta.compat.v1.sessions.reading_session import checkpoint_directory, has_chain
from hotdelta.errors import ChainError, ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)

STEPS = 4
OLD_STATE = "an old state is read"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full at step 0 and a delta after each of the steps; no full at the end, because training was killed."""
    directory = tmp_path_factory.mktemp("run")
    with new_graph():
        model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
        session = monitored(directory, save_incremental_checkpoint_steps=1)
        train(session, model, [[number] for number in range(STEPS)])
        session._tf_sess().close()
    assert [full.step for full in manifests(directory, Kind.FULL)] == [0]
    return directory


def single(run_dir: Path, **options: Any) -> Any:
    return tf.train.SingularMonitoredSession(checkpoint_dir=run_dir, **options)


def unsaved(run_dir: Path, **options: Any) -> Any:
    return tf.train.MonitoredTrainingSession(checkpoint_dir=run_dir, save_checkpoint_secs=None, **options)


def by_path(run_dir: Path) -> Any:
    return tf.train.SingularMonitoredSession(checkpoint_filename_with_path=run_dir / "model.ckpt-0")


@pytest.mark.parametrize("open_session", [single, unsaved, by_path])
def test_a_session_that_only_reads_has_the_newest_delta(
    run_dir: Path, open_session: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with new_graph():
        build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
        with open_session(run_dir) as session:
            assert_same_bits(live_state(session._tf_sess()), newest_state(run_dir))
    assert OLD_STATE not in caplog.text


def test_a_url_is_not_taken_for_a_directory_here(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run_dir, tmp_path / "gs:" / "run")
    monkeypatch.chdir(tmp_path)
    assert has_chain(checkpoint_directory("gs:/run/model.ckpt-0"))
    for url in ("gs://run/model.ckpt-0", "gs://run"):
        assert not has_chain(checkpoint_directory(url))


def by_hand(run_dir: Path) -> Any:
    return tf.train.MonitoredSession(tf.train.ChiefSessionCreator(checkpoint_dir=run_dir))


def scaffolded(run_dir: Path) -> Any:
    return unsaved(run_dir, scaffold=tf.train.Scaffold(saver=tf.train.Saver()))


def saving_elsewhere(run_dir: Path) -> Any:
    return single(run_dir, hooks=[tf.train.CheckpointSaverHook(run_dir / "other", save_steps=1)])


@pytest.mark.parametrize("open_session", [by_hand, scaffolded, saving_elsewhere])
def test_who_restores_the_full_alone_is_told_that_deltas_follow(
    run_dir: Path, open_session: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with new_graph():
        model = build_model(Build(parts=2))
        with open_session(run_dir) as session:
            assert session.run(model.step) == 0
    assert OLD_STATE in caplog.text
    assert f"newest_step={STEPS}" in caplog.text


def test_a_warm_start_from_a_full_is_told_that_deltas_follow(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with new_graph():
        build_model(Build(parts=2))
        warm_start(WarmStartSettings(run_dir))
    assert OLD_STATE in caplog.text


def test_a_checkpoint_that_nothing_follows_is_restored_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, save_incremental_checkpoint_steps=1) as session:
            train(session, model, [[1], [2]])
    with new_graph():
        model = build_model(Build())
        with scaffolded(tmp_path) as session:
            assert session.run(model.step) == 2
    assert OLD_STATE not in caplog.text


def test_a_saver_of_given_variables_saves_and_restores_a_chain(tmp_path: Path) -> None:
    for start in (0, 2):
        with new_graph():
            model = build_model(Build(parts=2), tf.train.AdagradOptimizer(0.1))
            tf.train.Saver(var_list=tf.global_variables(), incremental_save_restore=True)
            saver = tf.train.Saver(tf.global_variables(), sharded=True, incremental_save_restore=True)
            scaffold = tf.train.Scaffold(saver=saver, incremental_save_restore=True)
            session = monitored(tmp_path, scaffold=scaffold, save_incremental_checkpoint_steps=1)
            assert session._tf_sess().run(model.step) == start
            train(session, model, [[1], [2]])
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
            session._tf_sess().close()


def no_model(features: Any, labels: Any, mode: str) -> Any:
    raise AssertionError("training is over already, or is refused")


def no_input() -> dict[str, Any]:
    return {}


def test_an_estimator_counts_its_steps_from_the_newest_delta(run_dir: Path) -> None:
    estimator = tf.estimator.Estimator(
        no_model, str(run_dir), tf.estimator.RunConfig(save_incremental_checkpoint_steps=1)
    )
    estimator.train(no_input, max_steps=STEPS)
    with pytest.raises(AssertionError, match="refused"):
        estimator.train(no_input, max_steps=STEPS + 1)


def damage(manifest: Manifest, run_dir: Path) -> None:
    for file in manifest.files:
        path = directory_of(run_dir, manifest.kind) / file.name
        path.write_bytes(bytes(path.stat().st_size))


def test_an_estimator_goes_on_where_the_delta_of_its_last_step_is_damaged(
    run_dir: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(run_dir, tmp_path / "run")
    damage(manifests(damaged, Kind.DELTA)[-1], damaged)
    with pytest.raises(AssertionError, match="refused"):
        tf.estimator.Estimator(no_model, str(damaged)).train(no_input, max_steps=STEPS)


def test_an_estimator_that_will_train_leaves_the_check_of_all_files_to_the_restore(
    run_dir: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(run_dir, tmp_path / "run")
    for delta in manifests(damaged, Kind.DELTA):
        damage(delta, damaged)
    (full,) = manifests(damaged, Kind.FULL)
    damage(full, damaged)
    estimator = tf.estimator.Estimator(no_model, str(damaged))
    with pytest.raises(AssertionError, match="refused"):
        estimator.train(no_input, max_steps=STEPS + 1)
    with pytest.raises(ChainError, match="no full checkpoint"):
        estimator.train(no_input, max_steps=STEPS)


def run_config(**options: Any) -> Any:
    return tf.estimator.RunConfig(**options)


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda: run_config(keep_checkpoint_max=-1), "keep_checkpoint_max is -1.*at least 1"),
        (
            lambda: tf.train.Saver(max_to_keep=-1, incremental_save_restore=True),
            "max_to_keep is -1.*at least 1",
        ),
        (
            lambda: run_config(save_incremental_checkpoint_steps=1.5),
            "every 1.5 steps.*whole number",
        ),
        (lambda: run_config(save_incremental_checkpoint_steps="4"), "every '4' steps"),
        (lambda: run_config(save_incremental_checkpoint_secs=-1), "every -1 seconds"),
        (
            lambda: run_config(save_checkpoints_steps=True, save_incremental_checkpoint_secs=1),
            "every True steps",
        ),
        (
            lambda: monitored(Path("d"), save_incremental_checkpoint_steps=1.5),
            "every 1.5 steps.*whole number",
        ),
    ],
)
def test_what_is_no_interval_and_no_count_is_refused_where_it_is_given(make: Any, problem: str) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match=problem):
        make()


def test_a_directory_may_be_a_path_also_without_deltas(tmp_path: Path) -> None:
    with new_graph():
        build_model(Build())
        tf.train.MonitoredTrainingSession(checkpoint_dir=tmp_path, log_step_count_steps=None).close()
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-0")


def test_none_and_0_keep_all() -> None:
    for count in (None, 0):
        assert run_config(keep_checkpoint_max=count).keep_checkpoint_max == count
        tf.train.Saver(max_to_keep=count, incremental_save_restore=True)
