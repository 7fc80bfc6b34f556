"""The task that coordinates a cluster: trains, saves, and reports."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.train import DeltaWriter, DynamicTable
from hotdelta.train.servers import patience as server_patience
from hotdelta.train.tables.sharded import parts_of
from tests.distributed.cluster_model import (
    OPTIMIZERS,
    ROWS,
    WIDTH,
    OptimizerTraining,
    Ranker,
    Training,
    slots_of,
    whole,
)
from tests.distributed.reports import say

# The files that a process makes tell which it is; see server_file_mode.
COORDINATOR_FILE_MODE = 0o644


def coordinate(
    cluster: Mapping[str, list[str]],
    run_dir: str,
    tracking: str,
    update: str | None,
    shards: int,
    rows_written_by: str,
    working_dir: str | None,
    ends_with_full: bool,
    slow_seconds: float,
    report: str,
) -> None:
    """Trains until `<report>.stop` exists; then leaves the values of all variables in `<report>.npz`."""
    logging.basicConfig(level=logging.INFO)
    os.umask(0o666 & ~COORDINATOR_FILE_MODE)
    server_patience.SLOW_SECONDS = slow_seconds
    if working_dir is not None:
        os.chdir(working_dir)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(shards or len(cluster["ps"]))
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    with strategy.scope():
        model = Ranker()
        slot = tf.Variable(tf.fill([ROWS, WIDTH], 0.1), name="accumulator")
        optimizer = OPTIMIZERS[update]() if update else None
        if optimizer is not None:
            optimizer.build([*parts_of(model.table), *parts_of(model.kernel)])
    # After the others: it may have made a variable, and they are dealt out to servers in turn.
    with strategy.scope(), pytest.raises(ConfigurationError, match="under ParameterServerStrategy"):
        DynamicTable(4, max_rows=10)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    serving = Ranker()
    with DeltaWriter(
        run_dir,
        model,
        tables=["table"],
        slots={} if optimizer else {"table": {"accumulator": slot}},
        optimizer=optimizer,
        tracking={"table": tracking} if tracking else {},
        serving_model=serving,
        signatures={"serving_default": serving.score},
        save_secs=None,
        save_incremental_secs=None,
        save_steps=60,
        save_incremental_steps=10,
        keep_fulls=100,
        rows_written_by=rows_written_by,
    ) as writer:
        say(report, "resumed", writer.resumed.step if writer.resumed else None)
        scheduled = [writer.resumed.state["scheduled"] if writer.resumed else 0]
        say(report, "scheduled", scheduled[0])
        writer.register_state("scheduled", lambda: scheduled[-1])
        training = Training(model, slot) if optimizer is None else OptimizerTraining(model, optimizer)
        _train(coordinator, training, writer, report, scheduled)
        values = {"table": model.table, "kernel": model.kernel}
        if optimizer is None:
            values["slots/accumulator/table"] = slot
        else:
            values |= slots_of(optimizer)
            say(report, "counted", int(optimizer.iterations.numpy()))
        np.savez(f"{report}.npz", **{key: whole(value).numpy() for key, value in values.items()})
        say(report, "saved", str(writer.save_full() if ends_with_full else writer.save()))


def _train(
    coordinator: Any,
    training: Training | OptimizerTraining,
    writer: DeltaWriter,
    report: str,
    scheduled: list[int],
) -> None:
    """`scheduled`: how many batches were given to the workers, of all lives of the job; it grows at its end."""
    number = 0
    while not Path(f"{report}.stop").exists():
        for _ in range(10):
            number += 1
            coordinator.schedule(training.step, args=(tf.constant([number, os.getpid()]),))
        if number % 20:
            time.sleep(0.02)  # a delta while workers are busy
        else:
            coordinator.join()
        scheduled.append(scheduled[-1] + 10)
        writer.step(10)
        say(report, "step", number)
    coordinator.join()
