"""Saves while training waits for data: between two steps, always, and within their interval."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind
from hotdelta.keras_internals import ONE_STEP
from tests.keras.counting_models import IDS, SlowSGD, Stream, counting_model, facts_of
from tests.keras.small_models import BATCH, assert_saved, batches, by_hand, manifests, small_model
from tests.train.cut_loop import CutLoop
from tests.waiting import wait_until

CUTS = 150
# So many are looked at, at most.
CUTS_OF_A_STEP = 20
pytestmark = [
    pytest.mark.I1,
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.optimized,
]


class StopAfter(keras.callbacks.Callback):
    """Ends training when there were enough cuts, and of enough steps: a step that takes long may have any number."""

    def __init__(self, loop: CutLoop, cuts: int, stream: Stream) -> None:
        super().__init__()
        self._loop, self._cuts, self._stream = loop, cuts, stream

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        is_enough = self._loop.cuts >= self._cuts and len(self._loop.steps) > self._cuts / CUTS_OF_A_STEP
        if is_enough or (not self._loop.is_watched and self._loop.mixed):
            self._stream.stop.set()
            self.model.stop_training = True


def prefetched(stream: Stream) -> tf.data.Dataset:
    batch = (
        {"a": tf.TensorSpec([1, 4], tf.int64), "b": tf.TensorSpec([1, 4], tf.int64)},
        tf.TensorSpec([1, 1]),
    )
    plain = ((*element.batch, element.bookmark[0]) for element in stream)
    spec = (*batch, tf.TensorSpec([], tf.int64))
    dataset = tf.data.Dataset.from_generator(lambda: plain, output_signature=spec)
    return dataset.map(lambda x, y, place: hk.bookmarked((x, y), place)).prefetch(4)


def torture(
    run_dir: Path,
    model: keras.Model,
    *,
    cuts: int,
    is_watched: bool = True,
    data: Any = iter,
    updates: int = 1,
) -> CutLoop:
    """Train, and cut all the time, until there were `cuts`; without the protocol, until one is mixed."""
    stream = Stream()
    with by_hand(run_dir, scrub_saves=0) as callback:
        callback.resume(model)
        read = functools.partial(facts_of, batches_per_update=updates)
        loop = CutLoop(callback._started, read, is_watched=is_watched)
        with loop:
            model.fit(
                data(stream), shuffle=False, verbose=0, callbacks=[callback, StopAfter(loop, cuts, stream)]
            )
    return loop


MODELS: dict[str, dict[str, Any]] = {
    "one step a call": {},
    "four steps a call": {"steps_per_execution": 4},
    "prefetched, four steps a call": {"steps_per_execution": 4, "data": prefetched},
    "gradients of two batches": {"updates": 2},
}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "four steps a call"])
def test_no_cut_in_a_pause_mixes_two_steps(tmp_path: Path, name: str) -> None:
    """Four steps a call are looked at with prefetched batches only; both in soak."""
    assert_never_mixed(tmp_path, name, CUTS)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_no_cut_of_thousands_mixes_two_steps(tmp_path: Path, name: str) -> None:
    assert_never_mixed(tmp_path, name, 2500)


def assert_never_mixed(run_dir: Path, name: str, cuts: int) -> None:
    options = dict(MODELS[name])
    updates, data = options.pop("updates", 1), options.pop("data", iter)
    optimizer = SlowSGD(gradient_accumulation_steps=updates if updates > 1 else None)
    loop = torture(
        run_dir, counting_model(optimizer=optimizer, **options), cuts=cuts, data=data, updates=updates
    )
    assert loop.mixed == []
    assert loop.cuts >= cuts
    assert len(loop.steps) > cuts / CUTS_OF_A_STEP


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_without_the_protocol_cuts_are_mixed(tmp_path: Path, steps_per_call: int) -> None:
    model = counting_model(steps_per_execution=steps_per_call)
    assert torture(tmp_path, model, cuts=5000, is_watched=False).mixed


def test_cuts_go_on_after_a_step_that_raised(tmp_path: Path) -> None:
    model = counting_model(is_poisoned=True)

    def poisoned() -> Iterator[Any]:
        for count in (1, 2):
            yield hk.bookmarked(({"a": IDS, "b": IDS}, np.zeros((1, 1), np.float32)), count)
        yield hk.bookmarked(({"a": IDS, "b": IDS}, -np.ones((1, 1), np.float32)), 3)

    stream = Stream(first=3)
    with by_hand(tmp_path, scrub_saves=0) as callback:
        with pytest.raises(tf.errors.InvalidArgumentError, match="poison"):
            model.fit(poisoned(), shuffle=False, verbose=0, callbacks=[callback])
        with CutLoop(callback._started, facts_of) as loop:
            model.fit(
                iter(stream), shuffle=False, verbose=0, callbacks=[callback, StopAfter(loop, 50, stream)]
            )
    assert loop.mixed == []
    assert loop.cuts >= 50


def test_what_may_write_waits_for_the_mark_of_its_step_and_constants_do_not(tmp_path: Path) -> None:
    """A constant that waited would be computed, with all that is made of it, again in every step."""
    model = small_model()
    with by_hand(tmp_path) as callback:
        model.fit(*batches(1), batch_size=BATCH, verbose=0, callbacks=[callback])
        (graph,) = (found for found in model.optimizer.known_graphs if ONE_STEP in found.name)
        operations = graph.get_operations()
        begin = next(place for place, op in enumerate(operations) if op.type == "AssignAddVariableOp")
        step = [op for op in operations[begin + 1 :] if op.type != "Placeholder"]
        stateful = [op for op in step if op.op_def.is_stateful]
        assert {"AssignVariableOp", "ResourceScatterUpdate"} <= {op.type for op in stateful}
        assert all(operations[begin] in op.control_inputs for op in stateful[:-1])
        constants = [op for op in step if op.type == "Const"]
        assert constants
        assert not any(operations[begin] in op.control_inputs for op in constants)


class Pause:
    """A generator that stops for as long as a test likes, after `steps` batches."""

    def __init__(self, steps: int, after: int = 1) -> None:
        self.is_over = threading.Event()
        self.is_reached = threading.Event()
        self._steps, self._after = steps, after

    def __iter__(self) -> Iterator[Any]:
        inputs, targets = batches(self._steps + self._after)
        for step in range(self._steps + self._after):
            if step == self._steps:
                self.is_reached.set()
                assert self.is_over.wait(300)
            part = slice(step * BATCH, (step + 1) * BATCH)
            yield inputs[part], targets[part]


def committed_steps(run_dir: Path) -> list[int]:
    return [manifest.step for manifest in manifests(run_dir, Kind.DELTA)]


def wait_for_commit(callback: hk.DeltaCheckpoint, step: int) -> None:
    """Also until the trainer knows of it."""
    run_dir = callback.checkpoint_dir
    wait_until(
        lambda: (
            committed_steps(run_dir)[-1:] == [step] and callback.position == manifests(run_dir)[-1].position
        ),
        lambda: committed_steps(run_dir),
    )


def in_background(training: Any) -> threading.Thread:
    thread = threading.Thread(target=training, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 4}, {"run_eagerly": True}])
def test_what_fit_trained_is_committed_while_it_waits_for_data(tmp_path: Path, options: Any) -> None:
    model, pause = small_model(**options), Pause(10)
    with by_hand(tmp_path, save_incremental_secs=0.2) as callback:
        training = in_background(
            lambda: model.fit(iter(pause), shuffle=False, verbose=0, callbacks=[callback])
        )
        wait_until(lambda: committed_steps(tmp_path)[-1:] == [10], lambda: committed_steps(tmp_path))
        assert callback.position is not None
        before = len(committed_steps(tmp_path))
        time.sleep(1)
        assert len(committed_steps(tmp_path)) == before, "nothing was trained since"
        pause.is_over.set()
        training.join(60)
        assert_saved(callback)
    assert committed_steps(tmp_path)[-1] == 11


def test_what_a_loop_trained_is_committed_while_it_does_nothing(tmp_path: Path) -> None:
    model = small_model()
    inputs, targets = batches(10)
    with by_hand(tmp_path, save_incremental_secs=0.2) as callback:
        callback.resume(model)
        for first in range(0, len(inputs), BATCH):
            model.train_on_batch(inputs[first : first + BATCH], targets[first : first + BATCH])
            callback.step(bookmark=f"file-{first}")
        wait_for_commit(callback, 10)
        assert_saved(callback)
    with by_hand(tmp_path) as callback:
        found = callback.resume(small_model(seed=2))
        assert found is not None
        assert found.bookmark == f"file-{len(inputs) - BATCH}"


def test_a_step_that_nobody_has_told_of_yet_is_not_saved_in_a_pause(tmp_path: Path) -> None:
    model = small_model()
    inputs, targets = batches(2)
    with by_hand(tmp_path, save_incremental_secs=0.05) as callback:
        callback.resume(model)
        model.train_on_batch(inputs[:BATCH], targets[:BATCH])
        callback.step()
        wait_until(lambda: committed_steps(tmp_path) == [1], "the first step is saved")
        model.train_on_batch(inputs[BATCH:], targets[BATCH:])
        time.sleep(0.5)
        assert committed_steps(tmp_path) == [1]
        callback.step()
        wait_until(lambda: committed_steps(tmp_path) == [1, 2], "and the second when it was told")


def test_a_loop_of_its_own_is_saved_between_its_brackets(tmp_path: Path) -> None:
    model = small_model()
    inputs, targets = batches(2)
    weight = model.layers[-1].kernel
    with by_hand(tmp_path, save_incremental_secs=0.05) as callback:
        callback.resume(model)
        with callback.training_step(bookmark=1):
            model.train_on_batch(inputs[:BATCH], targets[:BATCH])
        wait_until(lambda: committed_steps(tmp_path)[-1:] == [1], "the first step is saved")
        with callback.training_step(bookmark=2):
            weight.assign(weight + 1)
            time.sleep(0.5)
            assert committed_steps(tmp_path)[-1] == 1, "half a step"
            weight.assign(weight - 0.5)
        wait_for_commit(callback, 2)
        assert_saved(callback)


def test_a_full_that_is_due_in_a_pause_is_written_once(tmp_path: Path) -> None:
    model, pause = small_model(), Pause(3)
    with by_hand(tmp_path, save_secs=0.5) as callback:
        training = in_background(
            lambda: model.fit(iter(pause), shuffle=False, verbose=0, callbacks=[callback])
        )
        wait_until(
            lambda: [found.step for found in manifests(tmp_path, Kind.FULL)][-1:] == [3],
            lambda: [found.step for found in manifests(tmp_path, Kind.FULL)],
        )
        fulls = len(manifests(tmp_path, Kind.FULL))
        time.sleep(1.5)
        assert len(manifests(tmp_path, Kind.FULL)) == fulls
        pause.is_over.set()
        training.join(60)
        assert_saved(callback)


def test_state_that_functions_tell_is_never_saved_with_steps_that_they_do_not_know(tmp_path: Path) -> None:
    """With four steps a call, two of which are made: the functions of the user still tell of those before."""
    model, pause = small_model(steps_per_execution=4), Pause(10)
    callback = by_hand(tmp_path, save_incremental_secs=0.05)
    told = [0]
    callback.register_state("told", lambda: told[0])

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            told[0] = batch + 1

    def train() -> None:
        model.fit(iter(pause), shuffle=False, verbose=0, callbacks=[Tell(), callback])

    with callback:
        training = in_background(train)
        assert pause.is_reached.wait(120)
        wait_until(
            lambda: (
                callback._attachment._calls is not None and callback._attachment._calls.ended_steps() == 10
            ),
            "",
        )
        time.sleep(0.5)
        assert max(committed_steps(tmp_path)) <= 8
        pause.is_over.set()
        training.join(60)


def test_bookmarks_are_of_the_batch_that_was_trained_however_far_the_reader_is(tmp_path: Path) -> None:
    inputs, targets = batches(9)
    read: list[int] = []

    def reader() -> Iterator[Any]:
        for step in range(9):
            read.append(step)
            part = slice(step * BATCH, (step + 1) * BATCH)
            yield inputs[part], targets[part], np.array([step, 7]), 1000.0 + step

    batch = (tf.TensorSpec([BATCH, 3], tf.int64), tf.TensorSpec([BATCH, 1]))
    spec = (*batch, tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.float64))
    dataset = tf.data.Dataset.from_generator(reader, output_signature=spec)
    dataset = dataset.map(lambda x, y, place, time: hk.bookmarked((x, y), place, time)).prefetch(9)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            wait_until(lambda: len(read) == 9, "all is read ahead")
            self.model.stop_training = batch == 3

    with by_hand(tmp_path) as callback:
        small_model().fit(dataset, shuffle=False, verbose=0, callbacks=[callback, Stop()])
        assert manifests(tmp_path)[-1].watermark == 1003.0
    with by_hand(tmp_path) as callback:
        model = small_model(seed=3)
        found = callback.resume(model)
        assert found is not None
        assert (found.step, found.bookmark) == (4, [3, 7])
        model.fit(inputs, targets, batch_size=BATCH, verbose=0, callbacks=[callback])
    with by_hand(tmp_path) as callback:
        found = callback.resume(small_model(seed=3))
        assert found is not None
        assert found.bookmark is None, "the steps since carried none"


def test_a_compiled_step_hides_its_marks_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    with by_hand(tmp_path, save_incremental_secs=0.1) as callback:
        callback.resume(model)
        model.train_on_batch(np.ones((BATCH, 3)), np.ones((BATCH, 1)))
        callback.step()
        with caplog.at_level(logging.WARNING):
            wait_until(lambda: "jit_compile" in caplog.text, "it is said")
            assert "saves that are due wait for the next step" in caplog.text
