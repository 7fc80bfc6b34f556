"""What a trainer process does: train on data that depends on the step alone, and report what it holds."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hotdelta.keras as hk
from tests.full_disk import fill_disk
from tests.keras.small_models import BATCH, ROWS, by_hand, live, small_model
from tests.keras.trainer_processes import serve_forks

Tell = Callable[[dict[str, Any]], None]


def digest(callback: hk.DeltaCheckpoint) -> str:
    values = live(callback)
    return hashlib.sha256(b"".join(values[key] for key in sorted(values))).hexdigest()


def batch(step: int) -> tuple[Any, Any]:
    random = np.random.default_rng(step)
    return random.integers(0, ROWS, (BATCH, 3)), random.random((BATCH, 1), np.float32)


def restored(callback: hk.DeltaCheckpoint, model: keras.Model) -> dict[str, Any]:
    resumed = callback.resume(model)
    return {
        "step": resumed.step if resumed else 0,
        "state": dict(resumed.state) if resumed else {},
        "problems": list(resumed.problems) if resumed else [],
        "digest": digest(callback),
    }


def train_until_killed(run_dir: Path, tell: Tell) -> None:
    """Saves after every step, with a full as often as one can be written."""
    model = small_model()
    callback = by_hand(run_dir, save_incremental_steps=1, save_steps=2, keep_fulls=2)
    step = 0
    callback.register_state("reader", lambda: step)
    report = restored(callback, model)
    tell(report)
    for step in range(report["step"], 1_000_000):
        model.train_on_batch(*batch(step))
        callback.step()
        if step == report["step"]:
            tell({"traced": True})


def train_to(run_dir: Path, tell: Tell, *, steps: int) -> None:
    """An uninterrupted run: tells what it holds before the first step and after every one."""
    model = small_model()
    with by_hand(run_dir, save_incremental_steps=1, save_steps=2, keep_fulls=2) as callback:
        tell(restored(callback, model))
        for step in range(steps):
            model.train_on_batch(*batch(step))
            callback.save()
            tell({"step": step + 1, "digest": digest(callback)})


def look(run_dir: Path, tell: Tell) -> None:
    """Resumes, and tells what it got."""
    with by_hand(run_dir) as callback:
        tell(restored(callback, small_model()))


EXAMPLES = 50_000


def example_model(*, steps_per_call: int = 1) -> keras.Model:
    """A table with a row for each example: a step on an example takes 1 from its row."""
    example = keras.Input((1,), dtype="int64", name="example")
    rows = hk.Embedding(EXAMPLES, 1, embeddings_initializer="zeros", name="examples")(example)
    model = keras.Model(example, keras.layers.Flatten()(rows))
    model.compile(hk.SGD(1.0), lambda _, found: tf.reduce_sum(found), steps_per_execution=steps_per_call)
    return model


def read_until_killed(run_dir: Path, tell: Tell, *, steps_per_call: int) -> None:
    """Trains example after example, which are read ahead, now and then after a pause. Saves are due all the time."""
    model = example_model(steps_per_call=steps_per_call)
    callback = hk.DeltaCheckpoint(run_dir, None, 0.02, serving_graph=False)
    resumed = callback.resume(model)
    first = resumed.bookmark if resumed and resumed.bookmark is not None else 0
    tell({"bookmark": first})

    def read() -> Iterator[Any]:
        random = np.random.default_rng(first)
        for place in range(first, EXAMPLES):
            if random.random() < 0.05:
                time.sleep(0.05)
            yield np.array([[place]]), np.zeros((1, 1), np.float32), place + 1

    spec = (tf.TensorSpec([1, 1], tf.int64), tf.TensorSpec([1, 1]), tf.TensorSpec([], tf.int64))
    dataset = tf.data.Dataset.from_generator(read, output_signature=spec)
    dataset = dataset.map(lambda x, y, place: hk.bookmarked((x, y), place)).prefetch(8)
    model.fit(dataset, verbose=0, callbacks=[callback])


def look_at_examples(run_dir: Path, tell: Tell) -> None:
    """Resumes, and tells the bookmark and how often each example before and after it was trained."""
    model = example_model()
    with by_hand(run_dir) as callback:
        resumed = callback.resume(model)
        place = resumed.bookmark if resumed and resumed.bookmark is not None else 0
        trained = -model.get_layer("examples").embeddings.numpy()[:, 0]
        before, after = (sorted(map(float, set(part))) for part in (trained[:place], trained[place:]))
        tell({"bookmark": place, "before": before, "after": after})


class Teller(keras.callbacks.Callback):
    """Tells after every step what the model holds; at the given step it does something."""

    def __init__(self, callback: hk.DeltaCheckpoint, tell: Tell, at: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._callback, self._tell, self._at, self._action = callback, tell, at, action

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self._tell({"step": step + 1, "digest": digest(self._callback)})
        if step == self._at:
            self._action()


def fit_and_be_told(run_dir: Path, tell: Tell) -> None:
    """SIGTERM comes after a step, before our callback's turn."""
    model, callback = small_model(), by_hand(run_dir)
    callback.resume(model)
    teller = Teller(callback, tell, 3, lambda: signal.raise_signal(signal.SIGTERM))
    _fit(model, [teller, callback])


def validate_and_be_told(run_dir: Path, tell: Tell) -> None:
    """SIGTERM comes in the last validation, when no step follows any more."""
    model, callback = small_model(), by_hand(run_dir)
    callback.resume(model)

    class Terminated(keras.callbacks.Callback):
        def on_test_begin(self, logs: Any = None) -> None:
            signal.raise_signal(signal.SIGTERM)

    _fit(model, [Teller(callback, tell, -1, lambda: None), callback, Terminated()], validation_data=batch(0))
    tell({"step": -1, "digest": "fit went on"})


def loop_and_be_told(run_dir: Path, tell: Tell) -> None:
    """The `with` form; the signal comes between a step and the call that tells of it."""
    model = small_model()
    with by_hand(run_dir) as callback:
        callback.resume(model)
        for step in range(1000):
            model.train_on_batch(*batch(step))
            tell({"step": step + 1, "digest": digest(callback)})
            if step == 3:
                signal.raise_signal(signal.SIGTERM)
            callback.step()


def fit_on_a_full_disk(run_dir: Path, _tell: Tell) -> None:
    """fit itself must fail: what comes after it does not save."""
    model, callback = small_model(), by_hand(run_dir)
    callback.resume(model)
    fill_disk()
    _fit(model, [callback])
    os._exit(0)


def loop_on_a_full_disk(run_dir: Path, _tell: Tell) -> None:
    """Nobody closes the callback: its last save is made when the process ends."""
    model, callback = small_model(), by_hand(run_dir)
    callback.resume(model)
    fill_disk()
    for step in range(4):
        model.train_on_batch(*batch(step))
        callback.step()


def fail_in_another_callback(run_dir: Path, tell: Tell) -> None:
    """Ends the process with an exception that Keras tells no callback about."""
    model, callback = small_model(), by_hand(run_dir)
    callback.resume(model)
    teller = Teller(callback, tell, 3, lambda: sys.exit(7))
    _fit(model, [callback, teller])


def be_told_after_a_failure(run_dir: Path, tell: Tell) -> None:
    """fit was ended by another callback, the program went on, and SIGTERM must still end it."""
    model, callback = small_model(), by_hand(run_dir)

    def fail() -> None:
        raise RuntimeError("broken callback")

    try:
        _fit(model, [callback, Teller(callback, tell, 1, fail)])
    except RuntimeError:
        signal.raise_signal(signal.SIGTERM)
    tell({"step": -1, "digest": "SIGTERM was lost"})


def _fit(model: keras.Model, callbacks: list[Any], **options: Any) -> None:
    data = [batch(step) for step in range(6)]
    inputs, targets = (np.concatenate([part[index] for part in data]) for index in (0, 1))
    model.fit(inputs, targets, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks, **options)


SCENARIOS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        train_until_killed,
        train_to,
        look,
        read_until_killed,
        look_at_examples,
        fit_and_be_told,
        validate_and_be_told,
        loop_and_be_told,
        fit_on_a_full_disk,
        loop_on_a_full_disk,
        fail_in_another_callback,
        be_told_after_a_failure,
    )
}

if __name__ == "__main__":
    # One thread, so that a sum has the same order in every process.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    serve_forks(SCENARIOS)
