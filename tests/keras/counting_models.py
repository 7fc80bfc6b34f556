"""Models whose every variable says how many steps were made, and whose steps take their time between two writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.train.rows.cut import Cut
from tests.train.cut_loop import Facts

ROWS = 64
IDS = np.arange(4, dtype=np.int64).reshape(1, 4)


class SlowSGD(hk.SGD):
    """Works for a while after each table that it has written, before it writes the next variable."""

    def __init__(self, **options: Any) -> None:
        super().__init__(1.0, **options)
        self.work = tf.Variable(1.0, trainable=False)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        with tf.control_dependencies(_written(graph)):
            super().update_step(gradient, variable, learning_rate)
        with tf.control_dependencies(_written(graph)):
            busy = tf.while_loop(
                lambda turn, _: turn < 400, lambda turn, x: (turn + 1, x * 1.0000001), [0, tf.constant(1.0)]
            )
            self.work.assign(busy[1])


def _written(graph: tf.Graph) -> list[tf.Operation]:
    names = ("Scatter", "SparseApply", "AssignSub", "AssignVariable")
    return [
        operation for operation in graph.get_operations() if any(name in operation.type for name in names)
    ]


def counting_model(*, is_poisoned: bool = False, optimizer: Any = None, **options: Any) -> keras.Model:
    """Two tables and a dense weight; each step takes 1 from the rows of both tables and from the weight.

    `is_poisoned`: a step on a target below 0 raises.
    """
    first, second = (keras.Input((4,), dtype="int64", name=name) for name in ("a", "b"))
    sums = [
        keras.ops.sum(hk.Embedding(ROWS, 1, embeddings_initializer="zeros", name=name)(ids), axis=(1, 2))
        for name, ids in (("one", first), ("two", second))
    ]
    weight = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False, name="dense")
    ones = keras.ops.ones_like(keras.ops.reshape(sums[0], (-1, 1)))
    out = keras.ops.reshape(sums[0] + sums[1], (-1, 1)) + weight(ones)

    def loss(target: Any, found: Any) -> Any:
        if is_poisoned:
            with tf.control_dependencies([tf.debugging.assert_non_negative(target, "poison")]):
                return tf.reduce_sum(found)
        return tf.reduce_sum(found)

    model = keras.Model([first, second], out)
    model.compile(optimizer or SlowSGD(), loss, jit_compile=False, **options)
    return model


def facts_of(cut: Cut, state: dict[str, Any], *, batches_per_update: int = 1) -> Facts:
    """How many steps each part of the cut has; nothing of what is not in it."""
    facts: Facts = {"cut": cut.step, "progress": state["step"]}
    if "bookmark" in state:
        facts["bookmark"] = state["bookmark"]
    for block in cut.blocks:
        if (
            len(block.ids)
            and block.variable.key.endswith("embeddings")
            and "optimizer" not in block.variable.key
        ):
            facts[block.variable.key] = -float(np.asarray(block.rows)[0, 0])
    for key, value in cut.values.items():
        if key.endswith("iterations"):
            facts[key] = float(value)
        elif key == "dense/kernel":
            facts[key] = -float(value.ravel()[0])
    if batches_per_update > 1:
        return {name: _updates(name, value, batches_per_update) for name, value in facts.items()}
    return facts


def _updates(name: str, value: float, batches: int) -> float:
    return value // batches if name in ("cut", "progress", "bookmark") or "iterations" in name else value


class Stream:
    """Batches that come when they like, until `stop`. Each carries how many there were, itself included."""

    def __init__(self, *, first: int = 1, longest_wait_seconds: float = 0.02) -> None:
        self.stop = threading.Event()
        self._wait_seconds = longest_wait_seconds
        self._random = np.random.default_rng(1)
        self._count = first - 1

    def __iter__(self) -> Iterator[Any]:
        while not self.stop.is_set():
            time.sleep(self._wait_seconds * self._random.random())
            self._count += 1
            yield hk.bookmarked(({"a": IDS, "b": IDS}, np.zeros((1, 1), np.float32)), self._count)
