"""A ChainTrainer on a handful of variables, trained by hand: no model, no tracing, every moment under control."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Manifest, Tracking
from hotdelta.chain.format.names import DELTA_DIRECTORY
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.train.model.assembly import assemble
from hotdelta.train.model.optimizer_slots import KeyedVariable, SlotVariable
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery
from hotdelta.train.tables.touched import TouchedRows
from tests.chain_replay import Values, replay, values_of

ROWS = 50
BY_HAND = WriterOptions(full=SaveEvery(), delta=SaveEvery(), keep_fulls=100)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class BrokenDisk(Disk):
    """A real disk that refuses to write while `error_number` is set."""

    def __init__(self) -> None:
        self.error_number: int | None = None

    def create(self, path: Path) -> int:
        self._fail_if_broken(path)
        return super().create(path)

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self._fail_if_broken(None)
        super().write_at(fd, data, offset)

    def link(self, source: Path, target: Path) -> None:
        self._fail_if_broken(target)
        super().link(source, target)

    def fill(self) -> None:
        self.error_number = errno.ENOSPC

    def repair(self) -> None:
        self.error_number = None

    def _fail_if_broken(self, path: Path | None) -> None:
        if self.error_number is not None:
            raise OSError(self.error_number, os.strerror(self.error_number), path and str(path))


class SlowDisk(Disk):
    """Between `hold` and `open`, lets the data of a full be written only as far as a test allows, a write at a time."""

    def __init__(self) -> None:
        self._allowed = threading.Semaphore(0)
        self._is_open = threading.Event()
        self._is_open.set()
        self._data_files: set[int] = set()

    def hold(self) -> None:
        self._is_open.clear()

    def allow(self, writes: int) -> None:
        if writes:
            self._allowed.release(writes)

    def wait_until_used(self) -> None:
        """Until every write that was allowed has been made."""
        while self._allowed.acquire(blocking=False):
            self._allowed.release()
            time.sleep(0.001)

    def open(self) -> None:
        self._is_open.set()
        self._allowed.release(10_000)

    def create(self, path: Path) -> int:
        fd = super().create(path)
        if ".data-" in path.name and path.parent.name != DELTA_DIRECTORY:
            self._data_files.add(fd)
        return fd

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if fd in self._data_files and not self._is_open.is_set():
            self._allowed.acquire()
        super().write_at(fd, data, offset)

    def close(self, fd: int) -> None:
        self._data_files.discard(fd)
        super().close(fd)


class SmallTraining:
    """A table with a slot, and one other variable. Each step changes some rows, the slot rows too, and the other."""

    def __init__(
        self,
        run_dir: Path,
        *,
        mode: Tracking = Tracking.TOUCHED,
        options: WriterOptions = BY_HAND,
        disk: Disk | None = None,
        clock: Clock | None = None,
        rows: int = ROWS,
        make_table: Callable[[Any], tf.Variable] = tf.Variable,
        seed: int = 0,
        is_resuming: bool = True,
    ) -> None:
        self.run_dir = run_dir
        self.disk = disk
        self._random = np.random.default_rng(seed)
        self.table = make_table(self._random.random((rows, 3), np.float32))
        self.slot = tf.Variable(tf.zeros((rows, 3)))
        self.other = tf.Variable(0.0)
        self.variables = {"table": self.table, "slots/momentum/table": self.slot, "other": self.other}
        self.touched = TouchedRows(rows, name="table") if mode is Tracking.TOUCHED else None
        self.trainer = ChainTrainer(run_dir, options=options, disk=disk, clock=clock or Clock())
        self.saved: dict[Position, Values] = {}
        self.resumed = self.trainer.start(
            assemble(
                [KeyedVariable("table", self.table), KeyedVariable("other", self.other)],
                table_keys={"table"},
                slots=[SlotVariable("slots/momentum/table", self.slot, self.table)],
            ),
            touched={"table": self.touched} if self.touched is not None else {},
            is_resuming=is_resuming,
        )
        self.remember()

    def write(self, ids: Any) -> None:
        """A training step as a row-wise optimizer makes it, not told to the trainer."""
        ids = np.unique(ids)
        for variable in (self.table, self.slot):
            rows = self._random.random((len(ids), 3), np.float32)
            tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)
        if self.touched is not None:
            self.touched.record(tf.constant(ids))
        self.other.assign_add(1.0)

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.write(self._random.integers(0, self.table.shape[0], 4))
            self.trainer.step()
            self.settle()

    def settle(self) -> None:
        """Let the delta that is being written be finished; the next step collects it."""
        self.trainer._pipeline.wait_for_delta()

    def settle_full(self) -> None:
        self.trainer._pipeline.wait_for_full()

    def save(self) -> Position | None:
        position = self.trainer.save()
        self.remember()
        return position

    def save_full(self) -> Position | None:
        position = self.trainer.save_full()
        self.remember()
        return position

    def remember(self) -> None:
        if self.trainer.position is not None:
            self.saved[self.trainer.position] = self.values()

    def values(self) -> Values:
        return values_of(self.variables)

    def manifests(self, kind: Kind) -> list[Manifest]:
        return [manifest for manifest in Scanner(self.run_dir).scan().manifests if manifest.kind is kind]

    def check(self) -> None:
        """Every remembered position is on disk exactly: from the nearest full, and through all the links."""
        first = min(manifest.position for manifest in self.manifests(Kind.FULL))
        for position, values in self.saved.items():
            assert replay(self.run_dir, position, values) == values
            assert replay(self.run_dir, position, values, full=first) == values

    def close(self) -> None:
        self.trainer.save()
        self.trainer.close()
