"""Deltas of a cluster: each parameter server writes its own rows, and they are read as if one process had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
import hotdelta.io as hio
import hotdelta.train
from exporter.loaded_graph import LoadedGraph
from hotdelta.chain import BundleReader, Kind, Manifest, directory_of
from hotdelta.chain.format import names
from hotdelta.compat.v1.chain.session_chain import SessionChain
from hotdelta.compat.v1.recording.training_graph import training_graph_of
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.compat.graph_mode.checks_of_exports import export, predictions, rows_of, served
from tests.compat.graph_mode.checks_of_failures import MANY_ROWS, race
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import (
    COLUMNS,
    Build,
    Model,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)
from tests.docs.pages import ROOT, blocks_of
from tests.full_disk import small_files_only

pytestmark = pytest.mark.I1

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "touched": lambda: tf.train.AdagradOptimizer(0.1),
    "compared": lambda: tf.train.AdamOptimizer(0.1),
}


@contextmanager
def cluster_model(build: Build, optimizer: Any) -> Iterator[tuple[Model, str]]:
    """A new graph whose variables are on the parameter servers, and the target for its Sessions."""
    cluster = fresh_cluster()
    with new_graph():
        with cluster.device():
            model = build_model(build, optimizer)
        yield model, cluster.target


@contextmanager
def running_chain(
    directory: Path, model: Model, target: str, options: WriterOptions | None = None
) -> Iterator[tuple[Any, SessionChain]]:
    """A Session that is saved only when the caller says so."""
    scaffold = tf.train.Scaffold(incremental_save_restore=True)
    session = tf.train.ChiefSessionCreator(scaffold, master=target).create_session()
    chain = SessionChain(
        scaffold.saver.prepare(),
        directory,
        options=options or WriterOptions(),
        step_tensor=model.step,
        meta_graph=None,
    )
    chain.start(session)
    yield session, chain
    chain.close()


def test_a_cluster_starts_from_a_save_and_then_from_its_own_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the example of docs/tf1.md."""
    monkeypatch.chdir(tmp_path)
    (example,) = (each for each in blocks_of(ROOT / "docs" / "tf1.md") if "start_from_save" in each.text)
    build = Build(parts=4)
    with new_graph():
        model = build_model(build, OPTIMIZERS["touched"]())
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(model.train, {model.ids: [1, 29]})
            hio.save_persistables(session, "yesterday")
            expected = live_state(session)
    for number in (1, 2):
        with cluster_model(build, OPTIMIZERS["touched"]()) as (model, _):
            scope = {"tf": tf, "server": fresh_cluster().servers[2], "is_chief": True}
            example.run(scope, {"checkpoint_secs=20": "checkpoint_steps=1"})
            with scope["session"] as session:
                assert_same_bits(live_state(session._tf_sess()), expected)
                train(session, model, [[number, 5]])
                expected = live_state(session._tf_sess())
        assert_same_bits(newest_state(tmp_path / "run"), expected)


def test_the_trainer_of_the_page_for_fluid_runs_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = blocks_of(ROOT / "docs" / "from-fluid.md")
    (example,) = (each for each in page if "MonitoredTrainingSession(" in each.text)
    cluster = fresh_cluster()
    scope = {
        "tf": tf,
        "hotdelta": hotdelta,
        "cluster": cluster.spec,
        "server": cluster.servers[2],
        "trainer_id": 0,
    }
    with new_graph():
        example.run(scope, {"range(100)": "range(3)"})
    (table,) = manifests(Path("run"), Kind.DELTA)[-1].tables.values()
    assert (table.shape, len(table.part_rows)) == ((10_000, 8), 2)


@pytest.mark.parametrize("tracking", OPTIMIZERS)
@pytest.mark.parametrize("build", [Build(), Build(parts=4, use_resource=True)], ids=str)
def test_deltas_and_the_resumed_session_are_what_was_trained(
    tmp_path: Path, tracking: str, build: Build
) -> None:
    with (
        cluster_model(build, OPTIMIZERS[tracking]()) as (model, target),
        monitored(tmp_path, master=target, save_incremental_checkpoint_steps=1) as session,
    ):
        for ids in ([1, 2], [29], [5, 6, 7, 7], [0, 29]):
            train(session, model, [ids])
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))
        expected = live_state(session._tf_sess())
    assert not list(tmp_path.rglob(".tmp-*"))
    first = manifests(tmp_path, Kind.FULL)[0]
    assert_same_bits(state_of(tmp_path, first, links_after(tmp_path, first)), expected)
    for full in manifests(tmp_path, Kind.FULL)[1:]:
        (tmp_path / names.manifest_name(full.prefix)).unlink()
    with (
        cluster_model(build, OPTIMIZERS[tracking]()) as (model, target),
        monitored(tmp_path, master=target) as session,
    ):
        assert_same_bits(live_state(session._tf_sess()), expected)
        train(session, model, [[3], [4]])
        assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


def test_each_server_writes_exactly_its_own_rows(tmp_path: Path) -> None:
    with (
        cluster_model(Build(parts=4), OPTIMIZERS["touched"]()) as (model, target),
        monitored(tmp_path, master=target) as session,
    ):
        writers = [
            operation
            for operation in session.graph.get_operations()
            if operation.type == "SaveV2" and "write_shard" in operation.name
        ]
        # Two servers with serving and training data each, for fulls and for deltas. They write what they have.
        assert sorted({_task(writer) for writer in writers}) == ["/job:ps/task:0", "/job:ps/task:1"]
        assert len(writers) == 8
        for writer in writers:
            values = [tensor.op for tensor in writer.inputs[3:] if tensor.op.type != "Placeholder"]
            assert {_task(value) for value in values} == {_task(writer)}
        train(session, model, [[0, 1, 9, 14, 29], [2, 3]])
        (delta,) = manifests(tmp_path, Kind.DELTA)
        graph = training_graph_of(session.graph)
        assert graph is not None
        parts = graph.tables[0].saved.parts
    assert [part.variable.device[-1] for part in parts] == ["0", "1", "0", "1"]
    with BundleReader(directory_of(tmp_path, Kind.DELTA), delta.prefix) as reader:
        ids = reader.read("table-ids")
    assert (np.diff(ids) > 0).all()
    rows = [int(((ids >= part.first_row) & (ids < part.first_row + part.rows)).sum()) for part in parts]
    stored = [rows[0] + rows[2], rows[1] + rows[3]]
    assert all(stored)
    id_and_row_bytes = 8 + 4 * 4
    # The chief's own file, and one of each server.
    data = [file for file in delta.files if file.role == names.ROLE_SERVING]
    assert [file.bytes for file in data[1:]] == [count * id_and_row_bytes for count in stored]


def _task(operation: Any) -> str:
    spec = tf.DeviceSpec.from_string(operation.device)
    return f"/job:{spec.job}/task:{spec.task}"


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_an_export_takes_deltas_of_servers_by_its_own_signature(tmp_path: Path, dtype: Any) -> None:
    build, run_dir = Build(parts=4, dtype=dtype), tmp_path / "run"
    with cluster_model(build, OPTIMIZERS["touched"]()) as (model, target):
        rows = rows_of(model, build)
        with (
            monitored(run_dir, master=target) as session,
            LoadedGraph(export(build, run_dir, tmp_path / "export")) as graph,
        ):
            train(session, model, [[0, 1, 9], [14, 29]])
            delta = manifests(run_dir, Kind.DELTA)[-1]
            graph.restore("restore_incremental", str(directory_of(run_dir, Kind.DELTA) / delta.prefix))
            assert served(graph) == predictions(session._tf_sess(), model, rows)


class MeteredSession:
    """A Session that counts the bytes that pass through it."""

    def __init__(self, session: Any) -> None:
        self._inner = session
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, fetches: Any, feeds: Any = None, **options: Any) -> Any:
        fetched = self._inner.run(fetches, feeds, **options)
        arrays = [*tf.nest.flatten(fetched), *(feeds or {}).values()]
        self.bytes += sum(np.asarray(array).nbytes for array in arrays if array is not None)
        return fetched


@pytest.mark.parametrize("tracking", OPTIMIZERS)
def test_no_row_passes_through_the_session_of_the_chief(tmp_path: Path, tracking: str) -> None:
    with (
        cluster_model(Build(parts=2, rows=5000), OPTIMIZERS[tracking]()) as (model, target),
        running_chain(tmp_path, model, target) as (plain, chain),
    ):
        session = MeteredSession(plain)
        chain.start(session)
        passed = []
        for count in (2, 4000):
            plain.run(model.train, {model.ids: np.arange(count)})
            session.bytes = 0
            assert chain.write_delta() is not None
            passed.append(session.bytes)
        # The names of the files and the values of the dense variables.
        assert passed[0] == passed[1] < 2000
        assert manifests(tmp_path, Kind.DELTA)[-1].rows_changed >= 4000
        assert_same_bits(newest_state(tmp_path), live_state(plain))
        # Nothing has changed since.
        assert chain.write_delta() is None


@pytest.mark.parametrize("tracking", OPTIMIZERS)
def test_what_a_server_could_not_write_is_in_the_next_delta(tmp_path: Path, tracking: str) -> None:
    with (
        cluster_model(Build(parts=2), OPTIMIZERS[tracking]()) as (model, target),
        running_chain(tmp_path, model, target) as (session, chain),
    ):
        session.run(model.train, {model.ids: [1]})
        assert chain.write_delta() is not None
        session.run(model.train, {model.ids: [2, 3, 29]})
        with small_files_only():
            assert chain.write_delta() is None
        assert not list(tmp_path.rglob(".tmp-*"))
        assert len(manifests(tmp_path, Kind.DELTA)) == 1
        delta = chain.write_delta()
        assert delta is not None
        assert tracking == "compared" or delta.rows_changed == 3
        assert_same_bits(newest_state(tmp_path), live_state(session))


def test_what_a_step_records_after_its_count_was_saved_is_saved_though_no_step_follows(
    tmp_path: Path,
) -> None:
    every_step = WriterOptions(delta=SaveEvery(steps=1))
    with cluster_model(Build(parts=2), OPTIMIZERS["touched"]()) as (model, target):
        # As the rows of a step of which a cut has seen only the count.
        late = tf.group([tf.scatter_add(part, [3], [[1.0] * COLUMNS]) for part in model.table])
        with running_chain(tmp_path, model, target, every_step) as (session, chain):
            session.run(model.train, {model.ids: [1]})
            chain.save_in_pause()
            chain.wait()
            session.run(late)
            for _ in range(3):
                chain.save_in_pause()
                chain.wait()
            assert_same_bits(newest_state(tmp_path), live_state(session))
            assert len(manifests(tmp_path, Kind.DELTA)) == 2


def test_a_cut_that_follows_a_save_has_no_step_of_the_chief(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that ends while the steps are looked at."""
    with (
        cluster_model(Build(parts=2), OPTIMIZERS["touched"]()) as (model, target),
        running_chain(tmp_path, model, target, WriterOptions(delta=SaveEvery(steps=2))) as (session, chain),
    ):
        note = chain._note_step

        def note_and_step() -> None:
            note()
            session.run(model.train, {model.ids: [1], **chain.watch.enter()})
            chain.watch.leave()

        monkeypatch.setattr(chain, "_note_step", note_and_step)
        chain.save_in_pause()
        chain.wait()
        assert not manifests(tmp_path, Kind.DELTA)
        monkeypatch.undo()
        assert chain.write_delta() is not None
        assert_same_bits(newest_state(tmp_path), live_state(session))


@pytest.mark.parametrize("use_resource", [False, True])
def test_no_update_is_in_neither_delta_while_workers_train(tmp_path: Path, use_resource: bool) -> None:
    build = Build(parts=2, use_resource=use_resource, rows=MANY_ROWS)
    with (
        cluster_model(build, tf.train.AdagradOptimizer(0.01)) as (model, target),
        running_chain(tmp_path, model, target) as (session, chain),
    ):
        race(session, model, chain.write_delta, saves=20)
        chain.write_delta()
        first = manifests(tmp_path, Kind.FULL)[0]
        links: list[Manifest] = links_after(tmp_path, first)
        assert len(links) >= 20
        assert_same_bits(state_of(tmp_path, first, links), live_state(session))
