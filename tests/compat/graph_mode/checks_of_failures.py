"""Writers that train while deltas are taken, disks that fail, and chains that are removed: nothing is lost."""

from __future__ import annotations

import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hotdelta.compat.v1 as tf
from hotdelta.chain.manifest import Kind
from hotdelta.compat.v1.session_chain import SessionChain
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    train,
)

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
            chain = SessionChain(
                scaffold.saver.prepare(), directory, keep_fulls=5, step_tensor=model.step, meta_graph=None
            )
            chain.start(session)
            race(session, model, partial(chain.save_delta, session), saves=60)
            chain.save_delta(session)
            first = manifests(directory, Kind.FULL)[0]
            links = links_after(directory, first)
            assert len(links) > 30
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
    for _ in range(saves):
        save()
    stop.set()
    for thread in threads:
        thread.join()


@contextmanager
def small_files_only() -> Iterator[None]:
    """Every larger write fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


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
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            assert_same_bits(live_state(session._tf_sess()), expected)
