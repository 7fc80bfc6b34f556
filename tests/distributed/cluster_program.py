"""The tasks of a TF2 parameter-server cluster, each a fork of one process that has imported TensorFlow and run nothing.

`python -m tests.distributed.cluster_program` reads one task per line (JSON) and answers with the pid of its process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import hotdelta.keras as hk
from hotdelta.chain.disk import Disk
from hotdelta.chain.names import MANIFEST_SUFFIX
from hotdelta.train import DeltaWriter, Job, SaveEvery, TrainerProgress, WriterOptions
from hotdelta.train.assembly import assemble
from hotdelta.train.optimizer_slots import KeyedVariable
from hotdelta.train.writer import ChainTrainer

ROWS, WIDTH, BATCH = 203, 4, 16
RATE = 0.1


def server_file_mode(index: int) -> int:
    return (0o640, 0o600, 0o604)[index]


def serve(cluster: Mapping[str, list[str]], job: str, index: int) -> None:
    """A parameter server or a worker, until it is killed. The files that a parameter server makes tell which it is."""
    if job == "ps":
        os.umask(0o666 & ~server_file_mode(index))
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index).join()


class Ranker(tf.Module):
    """A sharded table with its Adagrad slot, and a dense layer: made in a strategy's scope, or outside to be served."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.random.stateless_uniform([ROWS, WIDTH], [1, 2]), name="table")
        self.kernel = tf.Variable(tf.random.stateless_uniform([WIDTH, 1], [3, 4]), name="kernel")
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def score(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.nn.embedding_lookup(self.table, ids)
        return {"score": rows @ self.kernel, "rows": rows}


class Training:
    """Adagrad on rows, written out: what a custom loop for parameter servers looks like."""

    def __init__(self, model: Ranker, slot: Any) -> None:
        self._model = model
        self._slot = slot

    @tf.function
    def step(self, seed: tf.Tensor) -> None:
        model = self._model
        ids = tf.random.stateless_uniform([BATCH], seed, 0, ROWS, tf.int64)
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(model.table, ids)
            loss = tf.reduce_mean(tf.square(tf.matmul(rows, _whole(model.kernel)) - 1.0))
        gradients = tape.gradient(loss, [*_parts(model.table), *_parts(model.kernel)])
        parts = zip(_parts(model.table), _parts(self._slot), gradients, strict=False)
        for table, slot, gradient in parts:
            self._update(table, slot, gradient)
        for kernel, gradient in zip(_parts(model.kernel), gradients[len(_parts(model.table)) :], strict=True):
            kernel.assign_sub(RATE * gradient)
        model.step.assign_add(1)

    def _update(self, table: tf.Variable, slot: tf.Variable, gradient: tf.IndexedSlices) -> None:
        ids, places = tf.unique(gradient.indices)
        rows = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
        slot.scatter_add(tf.IndexedSlices(tf.square(rows), ids))
        table.scatter_sub(tf.IndexedSlices(RATE * rows / tf.sqrt(slot.sparse_read(ids) + 1e-7), ids))


class OptimizerTraining:
    """The same with a Keras optimizer that was built with the shards."""

    def __init__(self, model: Ranker, optimizer: Any) -> None:
        self._model = model
        self._optimizer = optimizer

    @tf.function
    def step(self, seed: tf.Tensor) -> None:
        tf.distribute.get_strategy().run(self._train, args=(seed,))

    def _train(self, seed: tf.Tensor) -> None:
        model = self._model
        ids = tf.random.stateless_uniform([BATCH], seed, 0, ROWS, tf.int64)
        variables = [*_parts(model.table), *_parts(model.kernel)]
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(model.table, ids)
            loss = tf.reduce_mean(tf.square(tf.matmul(rows, _whole(model.kernel)) - 1.0))
        self._optimizer.apply(tape.gradient(loss, variables), variables)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adagrad": lambda: hk.Adagrad(RATE),
    "every row": lambda: hk.Adagrad(RATE, weight_decay=0.01),
}


def _slots(optimizer: Any) -> dict[str, Any]:
    """The accumulators of the table's shards, as one."""
    parts = [slot._value for slot in optimizer._accumulators if "table" in slot.path]
    return {"optimizer/accumulators/table": ShardedVariable(parts)}


def _parts(variable: Any) -> list[tf.Variable]:
    return list(variable.variables) if hasattr(variable, "variables") else [variable]


def _whole(variable: Any) -> tf.Tensor:
    return tf.concat([part.read_value() for part in _parts(variable)], axis=0)


def coordinate(
    cluster: Mapping[str, list[str]],
    run_dir: str,
    tracking: str,
    update: str | None,
    shards: int,
    rows_written_by: str,
    working_dir: str | None,
    ends_with_full: bool,
    report: str,
) -> None:
    """Trains until `<report>.stop` exists; then leaves the values of all variables in `<report>.npz`."""
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
            optimizer.build([*_parts(model.table), *_parts(model.kernel)])
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    serving = Ranker()
    options = WriterOptions(full=SaveEvery(steps=60), delta=SaveEvery(steps=10), keep_fulls=100)
    with DeltaWriter(
        run_dir,
        model,
        tables=["table"],
        slots={} if optimizer else {"table": {"accumulator": slot}},
        optimizer=optimizer,
        tracking={"table": tracking} if tracking else {},
        serving_model=serving,
        signatures={"serving_default": serving.score},
        options=options,
        rows_written_by=rows_written_by,
    ) as writer:
        _say(report, "resumed", writer.resumed.step if writer.resumed else None)
        training = Training(model, slot) if optimizer is None else OptimizerTraining(model, optimizer)
        _train(coordinator, training, writer, report)
        values = {"table": model.table, "kernel": model.kernel}
        if optimizer is None:
            values["slots/accumulator/table"] = slot
        else:
            values |= _slots(optimizer)
        np.savez(f"{report}.npz", **{key: _whole(value).numpy() for key, value in values.items()})
        _say(report, "saved", str(writer.save_full() if ends_with_full else writer.save()))


def _train(
    coordinator: Any, training: Training | OptimizerTraining, writer: DeltaWriter, report: str
) -> None:
    number = 0
    while not Path(f"{report}.stop").exists():
        for _ in range(10):
            number += 1
            coordinator.schedule(training.step, args=(tf.constant([number, os.getpid()]),))
        if number % 20:
            time.sleep(0.02)  # a delta while workers are busy
        else:
            coordinator.join()
        writer.step(10)
        _say(report, "step", number)
    coordinator.join()


def _say(report: str, what: str, value: Any) -> None:
    with Path(report).open("a") as file:
        file.write(json.dumps([what, value]) + "\n")


def train_along(run_dir: str, trainer_id: int, trainers: int, report: str) -> None:
    """Trainer 1, 2 and so on of a job: its reader moves on by one with every step."""
    with TrainerProgress(run_dir, Job("ranking", trainer_id, trainers)) as progress:
        resumed = progress.resumed
        place = resumed.registered["reader"] if resumed else 0
        progress.register_state("reader", lambda: place)
        _say(report, "resumed", [resumed.step, place] if resumed else None)
        while not Path(f"{report}.stop").exists():
            place += 1
            progress.step()
            _say(report, "step", place)
            time.sleep(0.005)
    _say(report, "saved", place)


class DyingDisk(Disk):
    """Kills its process in the middle of a commit: before the first file of a delta, or around its manifest."""

    def __init__(self) -> None:
        self.dies = ""

    def create(self, path: Path) -> int:
        if self.dies == "before the first file":
            _die()
        return super().create(path)

    def link(self, source: Path, target: Path) -> None:
        is_manifest = target.name.endswith(MANIFEST_SUFFIX)
        if is_manifest and self.dies == "before the manifest":
            _die()
        super().link(source, target)
        if is_manifest and self.dies == "after the manifest":
            _die()


def lead(run_dir: str, trainers: int, dies: str, report: str) -> None:
    """Trainer 0 of a job: saves every few steps, and kills itself where `dies` says, once `<report>.die` exists."""
    disk, weight = DyingDisk(), tf.Variable(0.0)
    trainer = ChainTrainer(
        Path(run_dir),
        options=WriterOptions(full=SaveEvery(), delta=SaveEvery(), scrub_saves=0),
        job=Job("ranking", 0, trainers),
        disk=disk,
    )

    def read_place() -> int:
        if is_dying and dies == "when all have answered":
            _die()
        return trainer.progress.step

    is_dying = False
    trainer.states.register("place", read_place)
    resumed = trainer.start(assemble([KeyedVariable("weight", weight)], table_keys=()), touched={})
    _say(report, "resumed", [resumed.step, resumed.state["place"]] if resumed else None)
    while not Path(f"{report}.stop").exists():
        weight.assign_add(1.0)
        trainer.step()
        is_dying = Path(f"{report}.die").exists()
        if is_dying and dies == "before it asks":
            _die()
        if is_dying:
            disk.dies = dies
        _say(report, "saves", trainer.progress.step)
        _say(report, "saved position", str(trainer.save()))
        time.sleep(0.005)
    trainer.close()
    _say(report, "saved", trainer.progress.step)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


TASKS: dict[str, Callable[..., None]] = {
    "lead": lead,
    "serve": serve,
    "coordinate": coordinate,
    "train_along": train_along,
}


def _run_to_the_end(task: Callable[..., None], arguments: dict[str, Any]) -> None:
    """TensorFlow's own threads may keep a coordinator from ending when a parameter server is gone."""
    status = 1
    try:
        task(**arguments)
        status = 0
    except BaseException:  # noqa: BLE001 - the end of the process, whatever it was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        task, log, arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            _run_to_the_end(TASKS[task], arguments)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
