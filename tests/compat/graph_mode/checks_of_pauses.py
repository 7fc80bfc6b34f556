"""Saves while no step comes: between two steps, always, and committed before the next one."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain import Kind
from hotdelta.compat.v1.chain import open_chains
from hotdelta.compat.v1.chain.session_chain import SessionChain
from hotdelta.compat.v1.recording.training_graph import training_graph_of
from hotdelta.errors import ConfigurationError
from hotdelta.train.rows.cut import Cut
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.compat.graph_mode.checks_of_sessions import LosesItsSession
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import (
    Build,
    assert_same_bits,
    build_model,
    live_state,
    monitored,
    new_graph,
    settle,
    train,
)
from tests.full_disk import small_files_only
from tests.waiting import wait_until

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

CUTS, COMMITS = 150, 20
# So many are looked at, at most.
CUTS_OF_A_STEP = 20
IDS = np.arange(4, dtype=np.int64)
BY_TIME: dict[str, Any] = {
    "save_incremental_checkpoint_steps": None,
    "save_incremental_checkpoint_secs": 0.2,
}


def newest_step(directory: Path) -> int:
    return manifests(directory)[-1].step


def wait_for_commit(directory: Path, step: int) -> None:
    wait_until(lambda: newest_step(directory) == step, lambda: f"step {newest_step(directory)}, not {step}")


def stream_of(generate: Callable[[], Iterator[int]], *, prefetched: int = 0) -> tuple[Any, Any]:
    """A tensor of ids, which are always the same, and one of what the generator says of the batch."""
    spec = tf.TensorSpec([], tf.int64)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
    place = tf.data.make_one_shot_iterator(dataset.prefetch(prefetched) if prefetched else dataset).get_next()
    with tf.control_dependencies([place]):
        return tf.identity(tf.constant(IDS)), place


def counting_train(ids: Any, *, use_resource: bool = True) -> Any:
    """Each step adds 1 to the rows of two tables, one a while after the other, and to a variable before the second."""
    with tf.variable_scope("", use_resource=use_resource):
        zeros = tf.zeros_initializer()
        first, second = (tf.get_variable(name, [64, 2], initializer=zeros) for name in ("first", "second"))
        dense = tf.get_variable("dense", [], initializer=zeros)
        step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([tf.scatter_add(first, ids, tf.ones([4, 2]))]):
        busy = tf.py_func(_work, [], tf.float32)
    with tf.control_dependencies([tf.assign_add(dense, busy)]):
        written = tf.scatter_add(second, ids, tf.ones([4, 2]))
    with tf.control_dependencies([written]):
        return tf.group(tf.assign_add(step, 1))


def _work() -> np.float32:
    time.sleep(0.002)
    return np.float32(1)


class Spy(tf.train.CheckpointSaverHook):
    """Shows what it saves with."""

    @property
    def chain(self) -> SessionChain:
        assert self._chain is not None
        return self._chain


def spied(directory: Path, **options: Any) -> tuple[Any, Spy]:
    scaffold = tf.train.Scaffold(incremental_save_restore=True)
    hook = Spy(str(directory), save_steps=10**6, scaffold=scaffold, **options)
    session = tf.train.MonitoredTrainingSession(
        scaffold=scaffold, chief_only_hooks=[hook], log_step_count_steps=None
    )
    return session, hook


class CutLoop:
    """A thread that cuts beside training, as `hotdelta-pauses` does, until the block ends. All is given back."""

    def __init__(self, chain: SessionChain, session: Any, *, is_watched: bool) -> None:
        self.cuts, self.mixed, self.steps = 0, list[dict[str, float]](), set[float]()
        self._chain, self._session, self._is_watched = chain, session, is_watched
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cuts")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        random = np.random.default_rng(0)
        while not self._stop.is_set():
            self._cut()
            time.sleep(random.random() * 0.001)

    def _cut(self) -> None:
        chain, watch, session = self._chain, self._chain.watch, self._session
        quiet = watch.quiet(session)
        if quiet is None and self._is_watched:
            return
        cut = chain.take_cut(quiet)
        assert cut is not None
        if watch.quiet(session) == quiet or not self._is_watched:
            self._look_at(cut)
        chain.give_back(cut)

    def _look_at(self, cut: Cut) -> None:
        rows = {
            block.variable.key: float(np.max(np.asarray(block.rows)))
            for block in cut.blocks
            if len(block.ids)
        }
        values = {key: float(value) for key, value in cut.values.items()}
        facts = {**rows, **values, "bookmark": json.loads(cut.trainer_state).get("bookmark") or 0}
        facts["step"] = float(cut.step)
        self.cuts += 1
        self.steps.add(facts["step"])
        if len(set(facts.values())) > 1:
            self.mixed.append(facts)


def slow() -> Iterator[int]:
    random = np.random.default_rng(1)
    for count in range(1, 10**9):
        time.sleep(random.random() * 0.01)
        yield count


def torture(directory: Path, *, cuts: int, is_watched: bool = True, **options: Any) -> CutLoop:
    with new_graph():
        ids, place = stream_of(slow, prefetched=2)
        step = counting_train(ids, **options)
        tf.train.bookmark(place)
        session, hook = spied(directory, incremental_save_steps=10**6)
        with session, CutLoop(hook.chain, session._tf_sess(), is_watched=is_watched) as loop:
            # In a pause in which this thread stands still there are any number of cuts.
            while (loop.cuts < cuts or len(loop.steps) <= cuts / CUTS_OF_A_STEP) and (
                is_watched or not loop.mixed
            ):
                session.run(step)
    return loop


def assert_never_mixed(directory: Path, cuts: int, **options: Any) -> None:
    loop = torture(directory, cuts=cuts, **options)
    assert loop.mixed == []
    assert loop.cuts >= cuts
    assert len(loop.steps) > cuts / CUTS_OF_A_STEP


@pytest.mark.parametrize("use_resource", [False, True])
def test_no_cut_in_a_pause_mixes_two_steps(tmp_path: Path, use_resource: bool) -> None:
    assert_never_mixed(tmp_path, CUTS, use_resource=use_resource)


@pytest.mark.soak
@pytest.mark.parametrize("use_resource", [False, True])
def test_no_cut_of_thousands_mixes_two_steps(tmp_path: Path, use_resource: bool) -> None:
    assert_never_mixed(tmp_path, 2500, use_resource=use_resource)


@contextmanager
def placed_graph(*, is_cluster: bool) -> Iterator[str]:
    """A graph whose variables are in this process, or on the servers of a cluster with one worker; and its target."""
    with new_graph():
        if not is_cluster:
            yield ""
            return
        cluster = fresh_cluster()
        with cluster.device():
            yield cluster.target


in_both = pytest.mark.parametrize("is_cluster", [False, True], ids=["one process", "cluster"])


@in_both
def test_every_commit_is_of_one_step(tmp_path: Path, is_cluster: bool) -> None:
    """By either thread: both are at it, as often as the disk lets them."""
    options = {**BY_TIME, "save_incremental_checkpoint_secs": 0.001}
    with placed_graph(is_cluster=is_cluster) as target:
        ids, _ = stream_of(slow)
        step = counting_train(ids)
        with monitored(tmp_path, master=target, **options) as session:
            while len(manifests(tmp_path)) < COMMITS:
                session.run(step)
            last = live_state(session._tf_sess())
    full = manifests(tmp_path, Kind.FULL)[0]
    links = links_after(tmp_path, full)
    for number, link in enumerate(links):
        state = state_of(tmp_path, full, links[: number + 1])
        assert {float(np.max(value)) for value in state.values()} == {float(link.step)}
    assert_same_bits(state_of(tmp_path, full, links), last)


def test_without_the_protocol_cuts_are_mixed(tmp_path: Path) -> None:
    assert torture(tmp_path, cuts=5000, is_watched=False).mixed


@in_both
def test_while_a_run_waits_for_its_data_what_is_due_is_committed(tmp_path: Path, is_cluster: bool) -> None:
    def waiting() -> Iterator[int]:
        yield from (1, 2, 3)
        wait_for_commit(tmp_path, 3)
        yield 4

    with placed_graph(is_cluster=is_cluster) as target:
        ids, _ = stream_of(waiting)
        step = counting_train(ids)
        with monitored(tmp_path, master=target, **BY_TIME) as session:
            for _ in range(4):
                session.run(step)
            # And between two runs.
            wait_for_commit(tmp_path, 4)
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


@pytest.mark.parametrize("name", ["Adagrad", "Adam"])
def test_while_a_script_waits_for_what_it_feeds_what_is_due_is_committed(tmp_path: Path, name: str) -> None:
    """Adam's rows are compared."""
    optimizer = tf.train.AdagradOptimizer if name == "Adagrad" else tf.train.AdamOptimizer
    with new_graph():
        model = build_model(Build(), optimizer(0.1))
        with monitored(tmp_path, **BY_TIME) as session:
            for number in (1, 2):
                train(session, model, [[number], [number + 1], [number]])
                wait_for_commit(tmp_path, 3 * number)
                assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


def chain_of(directory: Path) -> SessionChain:
    return open_chains._open_chains[directory.resolve()]


def test_what_was_due_while_a_delta_was_written_is_committed_after_it(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, save_incremental_checkpoint_steps=1) as session:
            is_written = threading.Event()

            def write() -> None:
                is_written.wait()

            chain_of(tmp_path)._pipeline._delta_worker.submit(write)
            for number in range(5):
                session.run(model.train, {model.ids: [number]})
            assert newest_step(tmp_path) == 0
            is_written.set()
            wait_for_commit(tmp_path, 5)
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


def test_what_could_not_be_written_in_a_pause_is_written_later_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, **BY_TIME) as session:
            with small_files_only():
                session.run(model.train, {model.ids: [1]})
                wait_until(lambda: "delta not committed" in caplog.text, "a delta that failed")
            wait_for_commit(tmp_path, 1)
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


@pytest.mark.parametrize(
    "interval", [{"save_incremental_checkpoint_steps": 50}, BY_TIME], ids=["steps", "time"]
)
def test_steps_of_other_workers_count_before_the_chief_makes_one(
    tmp_path: Path, interval: dict[str, Any]
) -> None:
    cluster = fresh_cluster()
    with new_graph():
        with cluster.device():
            build_model(Build(use_resource=True), tf.train.AdagradOptimizer(0.1))
        chief = monitored(tmp_path, master=cluster.target, **interval)
    with new_graph():
        with cluster.device():
            model = build_model(Build(use_resource=True), tf.train.AdagradOptimizer(0.1))
        worker = monitored(tmp_path, master=cluster.targets[1], is_chief=False, **interval)
        for _ in range(60):
            worker.run(model.train, {model.ids: [1, 2]})
        wait_until(lambda: newest_step(tmp_path) >= 50, "a commit of what the worker trained")
        worker.close()
    assert {delta.kind for delta in manifests(tmp_path)[1:]} == {Kind.DELTA}
    chief.close()


def test_a_session_that_was_lost_and_made_anew_is_saved_in_its_pauses(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path, hooks=[LosesItsSession()], **BY_TIME) as session:
            train(session, model, [[1], [2]])
            wait_for_commit(tmp_path, 2)
            train(session, model, [[3], [4], [5]])
            # The third is made again, from whatever was committed.
            wait_for_commit(tmp_path, int(session.run(model.step)))
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


def test_listeners_hear_after_the_next_step_of_what_was_committed_in_a_pause(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []

    class Listener(tf.train.CheckpointSaverListener):
        def before_incremental_save(self, session: Any, global_step_value: int) -> None:
            heard.append(("before", global_step_value))

        def after_incremental_save(self, session: Any, global_step_value: int) -> bool:
            heard.append(("after", global_step_value))
            return True

    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        session, _ = spied(tmp_path, incremental_save_secs=0.2, listeners=[Listener()])
        with session:
            session.run(model.train, {model.ids: [1]})
            wait_for_commit(tmp_path, 1)
            settle()
            assert heard[-1] == ("before", 1)
            session.run(model.train, {model.ids: [1]})
            assert ("after", 1) in heard
            assert session.should_stop()


def test_what_nobody_told_of_is_left_to_the_next_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A write through the Session below, of which no hook hears."""
    caplog.set_level(logging.INFO, "hotdelta")
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        session, hook = spied(tmp_path, incremental_save_steps=10**6)
        with session:
            below = session._tf_sess()
            assert hook.chain.watch.quiet(below) is None
            session.run(model.train, {model.ids: [1]})
            quiet = hook.chain.watch.quiet(below)
            assert quiet is not None
            below.run(model.loss, {model.ids: [1]})
            assert hook.chain.watch.quiet(below) == quiet
            assert "no hook hears of it" not in caplog.text
            below.run(model.train, {model.ids: [1]})
            assert hook.chain.watch.quiet(below) is None
            assert "no hook hears of it" in caplog.text
            session.run(model.train, {model.ids: [1]})
            assert hook.chain.watch.quiet(below) is not None
            below.run(model.table.initializer)
            assert hook.chain.watch.quiet(below) is None


def test_a_writer_that_is_run_by_itself_takes_no_data(tmp_path: Path) -> None:
    with new_graph():
        ids, place = stream_of(lambda: iter(range(2)))
        tf.train.bookmark(place)
        step = counting_train(ids)
        rate = tf.get_variable("rate", [])
        slower = tf.assign(rate, rate * 0.5)
        with monitored(tmp_path) as session:
            session.run(step)
            for _ in range(3):
                session.run(slower)
            session.run(step)
    assert newest_step(tmp_path) == 2


def test_a_write_inside_a_cond_is_saved_between_two_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hotdelta")
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        extra = tf.get_variable("extra", [], use_resource=True)
        with tf.control_dependencies([model.train]):
            model.train = tf.cond(model.step > 0, lambda: tf.assign(extra, 1.0), lambda: tf.identity(extra))
        with monitored(tmp_path, **BY_TIME) as session:
            assert "inside a cond or a loop" in caplog.text
            train(session, model, [[1], [2]])
            wait_for_commit(tmp_path, 2)
            assert_same_bits(newest_state(tmp_path), live_state(session._tf_sess()))


def test_a_bookmark_is_of_the_last_batch_that_was_trained(tmp_path: Path) -> None:
    assert tf.train.latest_bookmark(tmp_path) is None
    for begins, ends in ((0, 3), (3, 3), (3, 5)):
        with new_graph():
            assert tf.train.latest_bookmark(tmp_path) == (begins or None)
            ids, place = stream_of(lambda first=begins: iter(range(first + 1, 99)), prefetched=8)  # type: ignore[misc]
            tf.train.bookmark(place, event_time=1000 + tf.cast(place, tf.float32))
            step = counting_train(ids)
            with monitored(tmp_path, **BY_TIME) as session:
                for _ in range(begins, ends):
                    session.run(step)
                wait_for_commit(tmp_path, ends)
                assert tf.train.latest_bookmark(tmp_path) == ends
        newest = manifests(tmp_path)[-1]
        assert (newest.step, newest.watermark) == (ends, 1000.0 + ends)
        assert tf.train.latest_bookmark(tmp_path) == ends


def test_a_bookmark_may_be_fed_and_be_a_list_of_strings(tmp_path: Path) -> None:
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        place = tf.placeholder(tf.string, [None])
        tf.train.bookmark(place)
        with monitored(tmp_path, **BY_TIME) as session:
            session.run(model.train, {model.ids: [1], place: ["a:1", "b:2"]})
    assert tf.train.latest_bookmark(tmp_path) == ["a:1", "b:2"]


def test_a_bookmark_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with new_graph():
        tf.train.bookmark(tf.constant(1))
        with pytest.raises(ConfigurationError, match="one bookmark"):
            tf.train.bookmark(tf.constant(1))
        tf.train.get_or_create_global_step()
        with pytest.raises(ConfigurationError, match="nothing counts the steps"):
            monitored(tmp_path)
    with new_graph():
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with tf.control_dependencies([model.train]):
            tf.train.bookmark(tf.identity(model.step))
        with pytest.raises(ConfigurationError, match="the step itself"):
            monitored(tmp_path)
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        tf.train.bookmark(tf.constant(1))
        saver = tf.train.Saver(incremental_save_restore=True)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(ConfigurationError, match="bookmark"):
                saver.save(session, tmp_path / "model.ckpt")
    cluster = fresh_cluster()
    with new_graph():
        with cluster.device():
            build_model(Build(), tf.train.AdagradOptimizer(0.1))
        tf.train.bookmark(tf.constant(1))
        with pytest.raises(ConfigurationError, match="job_progress"):
            monitored(tmp_path, master=cluster.target)


def test_runs_of_several_threads_are_left_to_the_next_step(tmp_path: Path) -> None:
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        session, hook = spied(tmp_path, incremental_save_steps=10**6)
        with session:
            graph = training_graph_of(session.graph)
            assert graph is not None
            hook.chain.watch.enter()
            other = threading.Thread(target=hook.chain.watch.enter)
            other.start()
            other.join()
            assert "several threads" in str(hook.chain.why_blind())
