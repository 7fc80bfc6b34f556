"""The work queue of DeepRec: every work once in an epoch, in whatever session, thread and process it is asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotdelta.compat.v1 as tf
from hotdelta.chain.format.manifest import Kind
from hotdelta.compat.v1.chain import open_chains
from hotdelta.compat.v1.deeprec.work_queue import WorkQueue
from hotdelta.compat.v1.graph.saved_variables import find_saved_variables
from hotdelta.compat.v1.graph.served_variables import served_variables
from hotdelta.errors import ConfigurationError
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import Build, build_model, monitored, new_graph, settle

WORKS = ["to", "be", "or", "not", "too", "bee"]


def take_all(session: Any, work: Any) -> list[str]:
    taken: list[str] = []
    try:
        while True:
            taken.append(session.run(work).decode())
    except tf.errors.OutOfRangeError:
        return taken


def all_of(**options: Any) -> list[str]:
    """All that a queue gives out in a Session of its own."""
    with new_graph():
        work = WorkQueue(WORKS, **options).take()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            return take_all(session, work)


def test_scripts_find_it_where_deeprec_has_it() -> None:
    from tensorflow.python.ops import work_queue

    assert work_queue.WorkQueue is WorkQueue


def test_works_come_in_their_order_as_often_as_there_are_epochs() -> None:
    assert all_of(shuffle=False, num_epochs=3) == WORKS * 3
    assert all_of(shuffle=False, prefix="s3/") == [f"s3/{work}" for work in WORKS]
    assert all_of(shuffle=False, num_slices=5, num_clients=4) == WORKS


def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides() -> None:
    orders = [all_of(num_epochs=8, seed=seed) for seed in (1, 1, 2)]
    epochs = [orders[0][first : first + len(WORKS)] for first in range(0, len(orders[0]), len(WORKS))]
    assert all(sorted(epoch) == sorted(WORKS) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 4
    assert orders[0] == orders[1] != orders[2]
    # That of the graph, where none is given.
    assert all_of(num_epochs=8) == all_of(num_epochs=8)


def start_runners(session: Any) -> tuple[Any, list[Any]]:
    coordinator = tf.train.Coordinator()
    return coordinator, tf.train.start_queue_runners(session, coordinator)


def test_a_producer_and_a_dataset_end_with_the_works() -> None:
    with new_graph():
        producer = WorkQueue(WORKS, num_epochs=2, shuffle=False).input_producer()
        other = WorkQueue(WORKS, shuffle=False)
        iterator = tf.data.make_initializable_iterator(other.input_dataset())
        many, one, item = producer.dequeue_many(2 * len(WORKS)), producer.dequeue(), iterator.get_next()
        assert (other.name, len(other), other.works[0]) == ("work_queue_1", 6, b"to")
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), iterator.initializer])
            coordinator, threads = start_runners(session)
            assert [work.decode() for (work,) in session.run(many)] == WORKS * 2
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(one)
            assert take_all(session, item) == WORKS
            coordinator.request_stop()
            coordinator.join(threads)


def at_once(functions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_share_it() -> None:
    with new_graph():
        work = WorkQueue(WORKS, num_epochs=20).take()
        taken: list[str] = []
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            at_once([lambda: taken.extend(take_all(session, work))] * 4)
    assert Counter(taken) == dict.fromkeys(WORKS, 20)


def test_what_is_left_is_in_the_summary() -> None:
    with new_graph():
        queue = WorkQueue(WORKS, name="files")
        queue.add_summary()
        work, summary = queue.take(), tf.summary.merge_all()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for expected in (1.0, 0.5, 0.0):
                (value,) = tf.Summary.FromString(session.run(summary)).value
                assert (value.tag, value.simple_value) == ("files/fraction_of_6_full", expected)
                for _ in range(3 if expected else 0):
                    session.run(work)


def train_on(directory: Path, steps: int, *, works: list[str] = WORKS, **options: Any) -> list[str]:
    """Take a work before each step, and be killed after the last one."""
    with new_graph():
        work = WorkQueue(works, **{"num_epochs": 2, **options}).take()
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        saved = find_saved_variables(tf.global_variables())
        assert "work_queue/state" not in {item.key for item in served_variables(saved)}
        session = monitored(directory, save_incremental_checkpoint_steps=1)
        taken = []
        for _ in range(steps):
            taken.append(session.run([work, model.train], {model.ids: [1]})[0].decode())
            settle()
        assert newest_state(directory)["work_queue/state"].tolist()[2] >= steps
        session._tf_sess().close()
    return taken


def test_a_killed_training_goes_on_with_what_is_not_taken(tmp_path: Path) -> None:
    straight = all_of(num_epochs=2, seed=3)
    assert train_on(tmp_path, 5, seed=3) == straight[:5]
    assert train_on(tmp_path, 4, seed=3) == straight[5:9]
    assert len(manifests(tmp_path, Kind.DELTA)) == 9
    # With more epochs it goes on, too.
    assert sorted(train_on(tmp_path, 3, seed=3, num_epochs=3)) == sorted(straight[9:])


def test_a_work_that_is_taken_between_two_steps_puts_no_save_off(tmp_path: Path) -> None:
    with new_graph():
        work = WorkQueue(WORKS).take()
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path) as session:
            session.run(model.train, {model.ids: [1]})
            raw = session._tf_sess()
            raw.run(work)
            chain = next(each for each in open_chains._open_chains.values() if each._run_dir == tmp_path)
            assert chain.watch.quiet(raw) is not None


def test_an_order_without_a_seed_outlives_the_process_that_threw_it(tmp_path: Path) -> None:
    both = train_on(tmp_path, 4) + train_on(tmp_path, 8)
    assert Counter(both) == dict.fromkeys(WORKS, 2)
    assert Counter(both[:6]) == dict.fromkeys(WORKS, 1)


def test_other_works_begin_anew_and_say_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train_on(tmp_path, 2, shuffle=False)
    assert train_on(tmp_path, 2, shuffle=False) == WORKS[2:4]
    assert "begins anew" not in capfd.readouterr().err
    tomorrow = ["fast", "fox", "jumps"]
    assert train_on(tmp_path, 2, works=tomorrow, shuffle=False) == tomorrow[:2]
    assert capfd.readouterr().err.count("work_queue begins anew") == 1
    assert train_on(tmp_path, 1, works=tomorrow, shuffle=False) == tomorrow[2:]


def test_a_session_reads_files_from_it_to_their_end(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"{number}\n{number + 10}\n")
    with new_graph():
        queue = WorkQueue([f"{number}.csv" for number in range(3)], shuffle=False, prefix=f"{tmp_path}/")
        iterator = tf.data.make_initializable_iterator(tf.data.TextLineDataset(queue.input_dataset()))
        model = build_model(Build(), tf.train.AdagradOptimizer(0.1))
        line = iterator.get_next()
        scaffold = tf.train.Scaffold(local_init_op=iterator.initializer, incremental_save_restore=True)
        lines = []
        with monitored(tmp_path / "run", scaffold=scaffold) as session:
            while not session.should_stop():
                number, _ = session.run([line, model.train], {model.ids: [1]})
                lines.append(int(number))
    assert lines == [0, 10, 1, 11, 2, 12]
    assert newest_state(tmp_path / "run")["work_queue/state"].tolist()[2] == 3


def test_the_workers_of_a_cluster_share_it_and_the_chief_saves_it(tmp_path: Path) -> None:
    cluster = fresh_cluster()

    def open_worker(number: int) -> Any:
        with tf.Graph().as_default(), cluster.device():
            producer = WorkQueue(WORKS, num_epochs=5, shuffle=False).input_producer()
            count = tf.assign_add(tf.train.get_or_create_global_step(), 1)
            fetches = [producer.dequeue(), count]
            return fetches, monitored(tmp_path, master=cluster.targets[number], is_chief=number == 0)

    taken = []
    workers = [open_worker(0), open_worker(1)]
    for number in [0, 1, 1, 0, 1, 1, 1, 0, 0]:
        fetches, session = workers[number]
        ((work,), _) = session.run(fetches)
        taken.append(work.decode())
    for _, session in workers[::-1]:
        session.close()
    # Each worker has one work in its producer, and another one in the hand of the thread that fills it.
    assert not Counter(taken) - Counter((WORKS * 5)[: len(taken) + 4])
    assert len(taken) <= newest_state(tmp_path)["work_queue/state"].tolist()[2] <= len(taken) + 4


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda: WorkQueue([]), "works are .*one at least"),
        (lambda: WorkQueue("to"), "works are 'to'"),
        (lambda: WorkQueue([1]), "works are"),  # type: ignore[list-item]
        (lambda: WorkQueue(WORKS, num_epochs=0), "num_epochs is 0"),
        (lambda: WorkQueue(WORKS, num_clients=0), "num_clients is 0"),
        (lambda: WorkQueue(WORKS, seed=0.5), "seed is 0.5"),  # type: ignore[arg-type]
        (lambda: WorkQueue(WORKS, local_work_mgr=1), "local_work_mgr .* no slices here"),
    ],
)
def test_what_is_no_queue_is_refused(make: Callable[[], Any], problem: str) -> None:
    with new_graph(), pytest.raises(ConfigurationError, match=problem):
        make()
