"""Writers that train while deltas are taken, disks that fail, and chains that are removed: nothing is lost."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain.format.manifest import Kind
from hotdelta.compat.v1.chain.session_chain import SessionChain
from hotdelta.compat.v1.graph.cluster_tasks import awaited_servers, own_task
from hotdelta.compat.v1.sessions.watched_session import WatchedSession
from hotdelta.errors import ConfigurationError, UnsavedError
from hotdelta.train.jobs.job import Job, JobFolder
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.servers import patience as server_patience
from hotdelta.train.servers.patience import why_silent
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)
from tests.full_disk import small_files_only
from tests.reserved_ports import reserved_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.I6

# So many that a row whose update was lost is hardly ever written again.
MANY_ROWS = 500_000


def test_no_update_is_in_neither_delta_while_threads_train(tmp_path: Path) -> None:
    for use_resource in (False, True):
        directory = tmp_path / str(use_resource)
        with new_graph():
            build = Build(parts=2, use_resource=use_resource, rows=MANY_ROWS)
            model = build_model(build, tf.train.AdagradOptimizer(0.01))
            scaffold = tf.train.Scaffold(incremental_save_restore=True)
            session = tf.train.ChiefSessionCreator(scaffold).create_session()
            graph = scaffold.saver.prepare()
            writers = [name for name in graph.recorders if "SparseApply" in name]
            assert len(writers) == build.parts
            for writer in writers:
                # The race hardly ever shows a row that is recorded before it is written.
                assert writer in [operation.name for operation in graph.recorders[writer].control_inputs]
            chain = SessionChain(
                graph, directory, options=WriterOptions(), step_tensor=model.step, meta_graph=None
            )
            chain.start(session)
            race(session, model, chain.write_delta, saves=20)
            chain.write_delta()
            first = manifests(directory, Kind.FULL)[0]
            links = links_after(directory, first)
            assert len(links) >= 20
            assert_same_bits(state_of(directory, first, links), live_state(session))
            chain.close()


def race(session: Any, model: Any, save: Any, *, saves: int) -> None:
    stop = threading.Event()

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        while not stop.is_set():
            session.run(model.train, {model.ids: random.integers(0, MANY_ROWS, 100)})

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    saved = 0
    while saved < saves:
        # Nothing is saved before the threads have come to their first step.
        saved += save() is not None
    stop.set()
    for thread in threads:
        thread.join()


def test_rows_of_a_delta_that_failed_are_in_the_next_one(tmp_path: Path) -> None:
    for name in ("Adagrad", "Adam"):
        optimizer = tf.train.AdagradOptimizer if name == "Adagrad" else tf.train.AdamOptimizer
        with new_graph():
            model = build_model(Build(parts=2), optimizer(0.1))
            with monitored(tmp_path / name, save_incremental_checkpoint_steps=1) as session:
                train(session, model, [[1]])
                with small_files_only():
                    train(session, model, [[2, 3], [4]])
                assert len(manifests(tmp_path / name, Kind.DELTA)) == 1
                train(session, model, [[5]])
                assert_same_bits(newest_state(tmp_path / name), live_state(session._tf_sess()))
            if name == "Adagrad":
                assert manifests(tmp_path / name, Kind.DELTA)[1].tables["table"].rows_changed == 4


def test_a_session_that_ends_on_a_full_disk_raises_and_says_what_is_lost(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        session = monitored(tmp_path, save_incremental_checkpoint_steps=2)
        train(session, model, [[1], [2]])
        train(session, model, [[3], [4], [5]])
        step = manifests(tmp_path)[-1].step
        with small_files_only(), pytest.raises(UnsavedError, match=r"1 step since position 1\.3") as raised:
            session.close()
        assert raised.value.steps == 5 - step > 0
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            assert session.run(tf.train.get_global_step()) == step


def test_a_chain_that_is_removed_is_started_again(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path / "run") as session:
            train(session, model, [[1], [2]])
            shutil.rmtree(tmp_path / "run")
            train(session, model, [[3], [4], [5], [6]])
            assert manifests(tmp_path / "run")[0].kind is Kind.FULL
            assert_same_bits(newest_state(tmp_path / "run"), live_state(session._tf_sess()))


def test_a_damaged_delta_is_stepped_over_to_what_is_valid(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        session = monitored(tmp_path, save_incremental_checkpoint_steps=1)
        train(session, model, [[1], [2]])
        expected = live_state(session._tf_sess())
        train(session, model, [[3]])
        session._tf_sess().close()
    (data,) = (tmp_path / ".incremental_checkpoint").glob("*ckpt-3.data-00000*")
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            assert_same_bits(live_state(session._tf_sess()), expected)


def test_the_directory_of_a_job_is_refused(tmp_path: Path) -> None:
    JobFolder(tmp_path).claim(Job("ranking", trainers=2))
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with pytest.raises(ConfigurationError, match="belongs to job 'ranking'"):
            monitored(tmp_path)


def test_a_session_that_waits_for_its_cluster_says_so_and_says_when_it_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_patience, "SLOW_SECONDS", 0.02)
    answered = threading.Event()

    class Cluster:
        def run(self, fetches: str) -> str:
            assert answered.wait(60)
            return fetches

    with reserved_ports(1) as (port,):
        servers = {"/job:ps/task:0": "", "/job:ps/task:1": f"localhost:{port}"}
        session = WatchedSession(Cluster(), servers)
        caller = threading.Thread(target=session.run, args=("a step",))
        caller.start()
        wait_until(lambda: len(caplog.messages) >= 2, "two lines in the log")
        for message in caplog.messages:
            assert message.startswith("still waiting for the cluster")
            assert 'servers="/job:ps/task:0, /job:ps/task:1"' in message
            assert 'silent="/job:ps/task:1 (connection refused)"' in message
        answered.set()
        caller.join()
    assert "the cluster answers again" in caplog.messages[-1]
    said = len(caplog.messages)
    # On a busy machine nothing is at once.
    monkeypatch.setattr(server_patience, "SLOW_SECONDS", 60.0)
    assert session.run("at once") == "at once"
    assert len(caplog.messages) == said


def test_a_session_waits_for_the_tasks_that_its_device_filters_leave() -> None:
    cluster = fresh_cluster()
    tasks = [f"/job:{job}/task:{index}" for job in ("ps", "worker") for index in range(2)]
    with new_graph(), cluster.device():
        build_model(Build(parts=2))
        variables = tf.global_variables()
        everybody = awaited_servers(cluster.target, None, variables)
        filters = ["/job:ps/task:1", "/job:worker"]
        some = awaited_servers(cluster.target, tf.ConfigProto(device_filters=filters), variables)
        unknown = awaited_servers("grpc://elsewhere:2222", None, variables)
    assert list(everybody) == tasks
    assert {task: why_silent(address) for task, address in everybody.items()} == dict.fromkeys(tasks)
    assert list(some) == tasks[1:]
    assert unknown == dict.fromkeys(tasks[:2], "")
    # An Estimator finds its server by the address in TF_CONFIG.
    for master in (cluster.target, f"grpc://{cluster.spec.task_address('worker', 0)}"):
        assert own_task(master) == tasks[2]
