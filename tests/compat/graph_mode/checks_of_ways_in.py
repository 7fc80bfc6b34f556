"""Every way from disk into a graph: what its manifest does not vouch for, or nobody signed, never gets in.

Those into other models are walked by tests/test_ways_in.py, which also has the list of all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
import hotdelta.io as hio
from hotdelta.chain import Kind
from hotdelta.errors import HotdeltaError
from tests.bad_states import BAD_VALUE, PLANTED, forge, fulls, newest_delta, plant, spoil
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.small_graphs import (
    ROWS,
    Build,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)
from tests.signing_keys import holding
from tests.ways_in import GRAPH_WAYS

pytestmark = pytest.mark.I4

STEPS = 5
OLDER, NEWEST = "model.ckpt-2", "model.ckpt-4"
Table = Any


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> tuple[Path, list[Table]]:
    """A signed chain, as a trainer that was killed leaves it, and the table after each step."""
    run_dir, tables = tmp_path_factory.mktemp("ways") / "run", []
    with new_graph(), holding(key_file):
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        session = monitored(
            run_dir, save_checkpoint_steps=2, save_incremental_checkpoint_steps=1, save_graph_def=True
        )
        for step in range(STEPS + 1):
            tables.append(live_state(session._tf_sess())["table"])
            if step < STEPS:
                train(session, model, [[step, step + 7]])
        session._tf_sess().close()
    assert [full.step for full in manifests(run_dir, Kind.FULL)] == [0, 2, 4]
    return run_dir, tables


@pytest.fixture
def run_dir(trained: tuple[Path, list[Table]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


def table_of(session: Any) -> Table:
    raw = session._tf_sess() if hasattr(session, "_tf_sess") else session
    return live_state(raw)["table"]


def restored_by(saver_options: dict[str, Any], checkpoint: Path) -> Table:
    build_model(Build())
    with tf.Session() as session:
        tf.train.Saver(**saver_options).restore(session, str(checkpoint))
        return table_of(session)


def opened(open_session: Callable[[Path], Any], optimizer: Any = None) -> Callable[[Path], Table]:
    """Of a Session that restores by itself, from the directory of a checkpoint or from the checkpoint."""

    def enter(checkpoint: Path) -> Table:
        build_model(Build(), optimizer)
        with open_session(checkpoint) as session:
            return table_of(session)

    return enter


def supervised(checkpoint: Path) -> Any:
    return tf.train.Supervisor(logdir=str(checkpoint.parent), save_model_secs=0).managed_session()


def managed(checkpoint: Path) -> Any:
    return tf.train.SessionManager().prepare_session(
        "", saver=tf.train.Saver(), checkpoint_dir=str(checkpoint.parent)
    )


def initialized(start: Callable[[Path], None]) -> Callable[[Path], Table]:
    def enter(checkpoint: Path) -> Table:
        build_model(Build())
        start(checkpoint)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            return table_of(session)

    return enter


def imported(checkpoint: Path) -> Table:
    saver = tf.train.import_meta_graph(f"{checkpoint}.meta", clear_devices=True)
    assert saver is not None
    with tf.Session() as session:
        saver.restore(session, str(checkpoint))
        return session.run("table:0")


def loaded(load: Callable[..., Any]) -> Callable[[Path], Table]:
    def enter(checkpoint: Path) -> Table:
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            load(session, checkpoint.parent)
            return table_of(session)

    return enter


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    model = build_model(Build(), tf.train.AdagradOptimizer(0.1) if is_training else None)
    rows = tf.nn.embedding_lookup(model.table, features["id"])
    return tf.estimator.EstimatorSpec(
        mode, predictions={"rows": rows}, loss=tf.reduce_max(rows), train_op=tf.assign_add(model.step, 1)
    )


def every_row() -> Any:
    return tf.data.Dataset.from_tensors({"id": np.arange(ROWS)})


class Look(tf.train.SessionRunHook):
    def after_create_session(self, session: Any, coord: Any) -> None:
        self.table = table_of(session)


def estimator_of(model_dir: Path, **options: Any) -> Any:
    config = tf.estimator.RunConfig(save_incremental_checkpoint_steps=1, log_step_count_steps=None)
    return tf.estimator.Estimator(model_fn, str(model_dir), config, **options)


def trained_on(checkpoint: Path) -> Table:
    look = Look()
    estimator_of(checkpoint.parent).train(every_row, hooks=[look], steps=1)
    return look.table


def warm_started(checkpoint: Path) -> Table:
    look = Look()
    other = estimator_of(checkpoint.parent / "other", warm_start_from=checkpoint.parent)
    other.train(every_row, hooks=[look], steps=1)
    return look.table


def evaluated(path: Callable[[Path], str | None]) -> Callable[[Path], Table]:
    return lambda checkpoint: estimator_of(checkpoint.parent).evaluate(
        every_row, checkpoint_path=path(checkpoint)
    )["loss"]


def predicted(path: Callable[[Path], str | None]) -> Callable[[Path], Table]:
    def enter(checkpoint: Path) -> Table:
        answers = estimator_of(checkpoint.parent).predict(every_row, checkpoint_path=path(checkpoint))
        return np.array([answer["rows"] for answer in answers])

    return enter


def exported(checkpoint: Path) -> Table:
    def receive() -> Any:
        ids = tf.placeholder(tf.int64, [None], name="id")
        return tf.estimator.export.ServingInputReceiver({"id": ids}, {"id": ids})

    base = checkpoint.parent / "export"
    path = estimator_of(checkpoint.parent).export_saved_model(
        str(base), receive, checkpoint_path=str(checkpoint)
    )
    loaded = tf.train.load_checkpoint(str(Path(path.decode()) / "variables" / "variables"))
    (name,) = [name for name, shape in loaded.get_variable_to_shape_map().items() if shape == [ROWS, 4]]
    return loaded.get_tensor(name)


WAYS: dict[str, Callable[[Path], Table]] = {
    "Saver.restore with deltas": lambda path: restored_by({"incremental_save_restore": True}, path),
    "Saver.restore": lambda path: restored_by({}, path),
    "MonitoredTrainingSession": opened(lambda path: monitored(path.parent), tf.train.AdagradOptimizer(0.1)),
    "MonitoredTrainingSession that only reads": opened(
        lambda path: tf.train.MonitoredTrainingSession(checkpoint_dir=path.parent, save_checkpoint_secs=None)
    ),
    "SingularMonitoredSession": opened(
        lambda path: tf.train.SingularMonitoredSession(checkpoint_filename_with_path=path)
    ),
    "ChiefSessionCreator and Scaffold": opened(
        lambda path: tf.train.MonitoredSession(
            tf.train.ChiefSessionCreator(tf.train.Scaffold(), checkpoint_dir=path.parent)
        )
    ),
    "Supervisor": opened(supervised),
    "SessionManager": opened(managed),
    "import_meta_graph": imported,
    "init_from_checkpoint": initialized(lambda path: tf.train.init_from_checkpoint(path, {"table": "table"})),
    "warm_start": initialized(lambda path: tf.train.warm_start(path.parent)),
    "Estimator(warm_start_from)": warm_started,
    "Estimator.train": trained_on,
    "Estimator.evaluate": evaluated(lambda checkpoint: None),
    "Estimator.evaluate(checkpoint_path)": evaluated(str),
    "Estimator.predict(checkpoint_path)": predicted(str),
    "Estimator.export_saved_model(checkpoint_path)": exported,
    "Estimator.get_variable_value": lambda path: estimator_of(path.parent).get_variable_value("table"),
    "io.load_persistables into a Session": loaded(hio.load_persistables),
    "io.load_vars into a Session": loaded(lambda session, path: hio.load_vars(session, path, ["table"])),
}


# Of those that read deltas, one of each kind. The others read the full that they are given, or `checkpoint` names.
READ_DELTAS = (
    "Saver.restore with deltas",
    "MonitoredTrainingSession",
    "MonitoredTrainingSession that only reads",
    "SingularMonitoredSession",
    "Estimator.evaluate",
    "io.load_persistables into a Session",
)
NEVER_READ_THE_STATE_FILE = ("io.load_persistables into a Session", "io.load_vars into a Session")


def test_every_way_of_the_list_is_walked() -> None:
    assert set(WAYS) == set(GRAPH_WAYS)


@pytest.fixture
def enter(trained: tuple[Path, list[Table]], caplog: pytest.LogCaptureFixture) -> Callable[[str, Path], str]:
    """Goes in by a way, and returns what was said: that it is refused, or why it has not the newest state."""

    def enter(way: str, checkpoint: Path) -> str:
        caplog.clear()
        try:
            with new_graph():
                table = WAYS[way](checkpoint)
        except HotdeltaError as error:
            return str(error)
        known = trained[1] if np.ndim(table) else [np.max(each) for each in trained[1]]
        assert np.max(table) != BAD_VALUE
        assert any(np.array_equal(table, each) for each in known)
        return caplog.text

    return enter


@pytest.mark.parametrize("way", WAYS)
def test_a_full_with_other_bytes_than_its_manifest_says_never_gets_in(
    way: str, run_dir: Path, enter: Callable[[str, Path], str]
) -> None:
    fulls(run_dir, spoil)

    assert "does not have the digest" in enter(way, run_dir / OLDER)


@pytest.mark.usefixtures("has_key")
@pytest.mark.parametrize("way", WAYS)
def test_with_a_key_a_full_that_nobody_signed_never_gets_in(
    way: str, run_dir: Path, enter: Callable[[str, Path], str]
) -> None:
    fulls(run_dir, forge)

    assert "it is not signed, and a key is configured" in enter(way, run_dir / OLDER)


@pytest.mark.usefixtures("has_key")
@pytest.mark.parametrize("way", WAYS)
def test_with_a_key_a_checkpoint_of_stock_tensorflow_never_gets_in(
    way: str, run_dir: Path, enter: Callable[[str, Path], str]
) -> None:
    plant(run_dir)

    said = enter(way, run_dir / PLANTED)

    assert "nobody signed it" in said or way in NEVER_READ_THE_STATE_FILE


@pytest.mark.parametrize("way", READ_DELTAS)
def test_a_delta_with_other_bytes_than_its_manifest_says_never_gets_in(
    way: str, run_dir: Path, enter: Callable[[str, Path], str]
) -> None:
    newest_delta(run_dir, spoil)

    assert "incremental_model.ckpt-5" in enter(way, run_dir / NEWEST)


@pytest.mark.usefixtures("has_key")
@pytest.mark.parametrize("way", READ_DELTAS[::3])
def test_with_a_key_a_delta_that_nobody_signed_never_gets_in(
    way: str, run_dir: Path, enter: Callable[[str, Path], str]
) -> None:
    newest_delta(run_dir, forge)

    assert "it is not signed, and a key is configured" in enter(way, run_dir / NEWEST)
