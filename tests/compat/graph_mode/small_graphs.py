"""A small model in graph mode, in every way in which it can be built, and its state on disk and in a Session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hotdelta.compat.v1 as tf
from hotdelta.compat.v1.chain import open_chains
from hotdelta.compat.v1.graph.saved_variables import find_saved_variables
from tests.compat.chain_states import State

ROWS, COLUMNS = 30, 4


@dataclass(frozen=True)
class Build:
    """How the table is built."""

    parts: int = 1
    use_resource: bool = False
    ids_dtype: Any = tf.int64
    strategy: str = "mod"
    hidden: int = 3
    rows: int = ROWS
    dtype: Any = tf.float32


@dataclass
class Model:
    ids: Any
    table: Any
    loss: Any
    step: Any
    train: Any = None


@contextmanager
def new_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        tf.set_random_seed(7)
        yield


def build_model(build: Build, optimizer: Any = None) -> Model:
    partitioner = tf.fixed_size_partitioner(build.parts) if build.parts > 1 else None
    initializer = tf.random_uniform_initializer(seed=1)
    table_initializer = tf.random_uniform_initializer(seed=1, dtype=build.dtype)
    with tf.variable_scope("", use_resource=build.use_resource):
        table = tf.get_variable(
            "table",
            [build.rows, COLUMNS],
            dtype=build.dtype,
            initializer=table_initializer,
            partitioner=partitioner,
        )
        kernel = tf.get_variable("kernel", [COLUMNS, build.hidden], initializer=initializer)
        ids = tf.placeholder(build.ids_dtype, [None], name="ids")
        rows = tf.nn.embedding_lookup(table, ids, partition_strategy=build.strategy)
        loss = tf.reduce_sum(tf.square(tf.matmul(tf.cast(rows, tf.float32), kernel)))
        step = tf.train.get_or_create_global_step()
        model = Model(ids, table, loss, step)
        if optimizer is not None:
            model.train = optimizer.minimize(loss, global_step=step)
    return model


def monitored(directory: Path, **options: Any) -> Any:
    options.setdefault("save_checkpoint_steps", 1_000_000)
    options.setdefault("save_incremental_checkpoint_steps", 2)
    options.setdefault("save_graph_def", False)
    return tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(directory), log_step_count_steps=None, **options
    )


def train(session: Any, model: Model, batches: Any) -> None:
    """One step for each batch; each waits for the delta of the one before it, so that no delta is put off."""
    for ids in batches:
        session.run(model.train, {model.ids: ids})
        settle()


def settle() -> None:
    for chain in list(open_chains._open_chains.values()):
        chain.wait()


def live_state(session: Any) -> State:
    """Every saved variable of the Session's graph, whole, under its key."""
    saved = find_saved_variables(session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES))
    raw = session.run({item.key: [_reading(part) for part in item.parts] for item in saved})
    return {item.key: _joined(raw[item.key]) for item in saved}


def assert_same_bits(one: State, other: State) -> None:
    assert sorted(one) == sorted(other)
    for key, value in one.items():
        assert value.dtype == other[key].dtype, key
        assert value.tobytes() == other[key].tobytes(), key


def _reading(part: Any) -> Any:
    return part.variable._graph_element if part.is_resource else part.reference


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
