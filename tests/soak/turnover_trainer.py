"""A trainer whose keys come and go: told on standard input to train for a second or to commit, it answers with JSON.

{"do": "train"}                  a second of training; answers with the oldest key in use and what look-ups took
{"do": "save", "keys": [3, 5]}   commit; answers with the position and the bits of what these keys read there
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.train import DeltaWriter, DynamicTable, MostKeys

# A little fewer than 32,768 buckets hold, so that nearly all buckets hold as many. Of some that hold half as many, more
# of their keys would go with each sweep, and among them some that are in use.
LIVE = 150_000
COLUMNS = 16
TABLE = "users/rows"
STEPS_A_SECOND = 10
# In a minute a tenth of all keys.
NEW_IN_STEP = LIVE // 10 // 60 // STEPS_A_SECOND + 1
OLD_IN_STEP = 222
# So many of the newest keys are trained in turn, each once a minute. Those before them are trained no more: they go.
IN_USE = LIVE * 3 // 4
SPAN = 30_000
# It has no divisor in common with IN_USE: the keys of a span differ, and their rows do not lie side by side.
STRIDE = 48_271
# With so few fulls kept, the directory has its full size after two minutes.
SAVES: dict[str, Any] = {"save_incremental_secs": 1.0, "save_secs": 30, "keep_fulls": 3}
TRAINED_AT_ONCE = 4_096

BATCH = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, COLUMNS], tf.float32)]

Array = npt.NDArray[Any]


class Model(tf.Module):
    """Two tables, of which one stays as it was: look-ups in it are what those in the other are compared with."""

    def __init__(self) -> None:
        super().__init__()
        self.users = DynamicTable(COLUMNS, max_rows=2 * LIVE, eviction=MostKeys(LIVE), name="users")
        self.still = DynamicTable(COLUMNS, max_rows=2 * LIVE, name="still")
        self.optimizer = hk.Adagrad(0.05)
        self.optimizer.build([self.users.rows, self.still.rows])
        self._random = np.random.default_rng(5)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
    def serve(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"vectors": self.users.look_up(keys)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="first")])
    def users_span(self, first: tf.Tensor) -> dict[str, tf.Tensor]:
        return _sums(self.users, first)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="first")])
    def still_span(self, first: tf.Tensor) -> dict[str, tf.Tensor]:
        return _sums(self.still, first)

    @property
    def signatures(self) -> dict[str, Any]:
        return {"serving_default": self.serve, "users": self.users_span, "still": self.still_span}

    def train(self, keys: Array) -> None:
        self._train_users(*self._batch(keys))

    def train_both(self, keys: Array) -> None:
        self._train_users(*self._batch(keys))
        self._train_still(*self._batch(keys))

    def _batch(self, keys: Array) -> tuple[tf.Tensor, tf.Tensor]:
        values = self._random.normal(size=(len(keys), COLUMNS)).astype(np.float32)
        return tf.constant(keys, tf.int64), tf.constant(values)

    @tf.function(input_signature=BATCH)
    def _train_users(self, keys: tf.Tensor, values: tf.Tensor) -> None:
        self._descend(self.users, keys, values)

    @tf.function(input_signature=BATCH)
    def _train_still(self, keys: tf.Tensor, values: tf.Tensor) -> None:
        self._descend(self.still, keys, values)

    def _descend(self, table: DynamicTable, keys: tf.Tensor, values: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table.look_up(keys, training=True) * values)
        self.optimizer.apply([tape.gradient(loss, table.rows)], [table.rows])


def _sums(table: DynamicTable, first: tf.Tensor) -> dict[str, tf.Tensor]:
    """The sums of the rows of SPAN keys, and how many of those have no row; `first` is the oldest key in use."""
    keys = first[:, tf.newaxis] + tf.range(SPAN, dtype=tf.int64) * STRIDE % IN_USE
    rows = table.look_up(keys)
    missing = tf.reduce_all(tf.equal(rows, 0), axis=-1)
    return {"sums": tf.reduce_sum(rows, axis=1), "missing": tf.reduce_sum(tf.cast(missing, tf.int64), axis=1)}


class Training:
    """Keys are numbered as they come; the first of them are there from the beginning, in both tables."""

    def __init__(self, run_dir: Path) -> None:
        self._model = Model()
        self._writer = DeltaWriter(
            run_dir, self._model, optimizer=self._model.optimizer, signatures=self._model.signatures, **SAVES
        )
        self._next_key = self._turn = LIVE
        for first in range(0, LIVE, TRAINED_AT_ONCE):
            with self._writer.training_step():
                self._model.train_both(np.arange(first, min(LIVE, first + TRAINED_AT_ONCE)))
        # A key is as old as the delta that has it: those in use must not seem as old as all others.
        self._writer.save()
        with self._writer.training_step():
            self._model.train(np.arange(self.oldest, LIVE))
        # The first call of each makes its graph.
        self._look_up_seconds()

    @property
    def oldest(self) -> int:
        """Of the keys in use."""
        return self._next_key - IN_USE

    def train(self) -> dict[str, Any]:
        start, pause, seconds = time.monotonic(), threading.Event(), []
        for step in range(1, STEPS_A_SECOND + 1):
            with self._writer.training_step():
                self._model.train(self._next_keys())
            if step % 2:
                seconds.append(self._look_up_seconds())
            pause.wait(max(0.0, start + step / STEPS_A_SECOND - time.monotonic()))
        return {"oldest": self.oldest, "look_up_seconds": seconds}

    def save(self, keys: list[int]) -> dict[str, Any]:
        position = self._writer.save()
        vectors = self._model.serve(tf.constant(keys, tf.int64))["vectors"].numpy()
        failures = self._writer.status.failures
        return {"position": str(position), "bits": vectors.tobytes().hex(), "failures": failures}

    def _next_keys(self) -> Array:
        if self._turn + OLD_IN_STEP > self._next_key:
            self._turn = self.oldest
        keys = np.concatenate([self._next_key + np.arange(NEW_IN_STEP), self._turn + np.arange(OLD_IN_STEP)])
        self._next_key += NEW_IN_STEP
        self._turn += OLD_IN_STEP
        return keys

    def _look_up_seconds(self) -> tuple[float, float]:
        """Processor time of a look-up in each table."""
        return _seconds(self._model.users_span, self.oldest), _seconds(self._model.still_span, 0)


def _seconds(function: Any, first: int) -> float:
    start = time.process_time()
    function(tf.constant([first], tf.int64))["sums"].numpy()
    return time.process_time() - start


def main() -> None:
    training = Training(Path(sys.argv[1]))
    _say({"position": training.save([])["position"]})
    for line in sys.stdin:
        order = json.loads(line)
        _say(training.train() if order["do"] == "train" else training.save(order["keys"]))


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
