"""When the writer saves, what it keeps, and what it says."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.format.names import DELTA_DIRECTORY, TRAINER_STATE_TENSOR
from hotdelta.chain.format.position import Position
from hotdelta.errors import CommitError, ConfigurationError, DirectoryBusyError, HotdeltaError
from hotdelta.tensorflow_internals import ResourceVariable
from hotdelta.train.jobs.saves import JobSaves
from hotdelta.train.model.assembly import assemble
from hotdelta.train.model.optimizer_slots import KeyedVariable, SlotVariable
from hotdelta.train.save.background import BackgroundWorker, CallersWorker
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery
from hotdelta.train.tables.touched import TouchedRows
from tests.train.conftest import StartTraining
from tests.train.small_training import BY_HAND, BrokenDisk, Clock, SlowDisk

BOTH = pytest.mark.parametrize("mode", list(Tracking))


def deltas_every(**amounts: float) -> WriterOptions:
    return dataclasses.replace(BY_HAND, delta=SaveEvery(**amounts))  # type: ignore[arg-type]


def test_an_empty_directory_gets_a_full_before_the_first_step(start_training: StartTraining) -> None:
    training = start_training()
    (full,) = training.manifests(Kind.FULL)
    assert (full.position, full.parent, training.manifests(Kind.DELTA)) == (Position(1, 1), None, [])
    training.check()


@BOTH
def test_saves_by_steps(start_training: StartTraining, mode: Tracking) -> None:
    training = start_training(mode=mode, options=deltas_every(steps=3))
    training.train(steps=10)
    assert [manifest.step for manifest in training.manifests(Kind.DELTA)] == [3, 6, 9]


def test_saves_by_seconds(start_training: StartTraining) -> None:
    clock = Clock()
    training = start_training(clock=clock, options=deltas_every(seconds=5))
    for _ in range(8):
        training.train()
        clock.now += 2
    assert [manifest.step for manifest in training.manifests(Kind.DELTA)] == [4, 7]


def test_saves_by_epochs(start_training: StartTraining) -> None:
    training = start_training(options=deltas_every(epochs=2))
    for epoch in range(5):
        training.train(steps=2)
        training.trainer.end_epoch(epoch)
        training.settle()
    assert [manifest.step for manifest in training.manifests(Kind.DELTA)] == [4, 8]


def test_saves_by_touched_rows_counted_a_few_times_a_second(start_training: StartTraining) -> None:
    clock = Clock()
    training = start_training(clock=clock, options=deltas_every(touched_rows=10))
    for first in range(0, 30, 5):
        training.write(range(first, first + 5))
        # Not before: the thread that saves in pauses may count as well.
        clock.now += 1
        training.trainer.step()
        training.settle()
    assert [manifest.rows_changed for manifest in training.manifests(Kind.DELTA)] == [10, 10, 10]


def test_nothing_is_saved_unless_asked_and_nothing_twice(start_training: StartTraining) -> None:
    training = start_training()
    training.train(steps=5)
    assert training.manifests(Kind.DELTA) == []
    assert training.save() == Position(1, 2)
    assert training.save() == Position(1, 2)
    training.check()


def test_fulls_by_steps_are_kept_to_the_given_number(start_training: StartTraining) -> None:
    options = WriterOptions(full=SaveEvery(steps=2), delta=SaveEvery(steps=1), keep_fulls=2, scrub_saves=0)
    training = start_training(options=options)
    for _ in range(12):
        training.train()
        training.settle_full()
    training.trainer.finish()
    fulls = [manifest.position for manifest in training.manifests(Kind.FULL)]
    assert len(fulls) == 2
    assert training.trainer.status.fulls > 3
    assert min(manifest.position for manifest in training.manifests(Kind.DELTA)) == fulls[0]


def test_nothing_is_committed_of_variables_that_were_replaced_while_others_were_trained_on(
    start_training: StartTraining,
) -> None:
    training = start_training()
    training.train()
    position = training.save()
    old, training.table = training.table, tf.Variable(training.table + 1.0)
    training.variables["table"] = training.table
    training.train()
    variables = assemble(
        [KeyedVariable("table", training.table), KeyedVariable("other", training.other)],
        table_keys={"table"},
        slots=[SlotVariable("slots/momentum/table", training.slot, training.table)],
    )
    training.touched = TouchedRows(old.shape[0], name="table")
    training.trainer.rebind(variables, touched={"table": training.touched}, demanded=frozenset())
    assert training.trainer.position == position
    training.save()
    training.train()
    training.save()
    training.check()


@BOTH
def test_a_full_and_its_closing_delta_are_one_position(start_training: StartTraining, mode: Tracking) -> None:
    training = start_training(mode=mode)
    training.train(steps=2)
    position = training.save_full()
    full, delta = training.manifests(Kind.FULL)[-1], training.manifests(Kind.DELTA)[-1]
    assert full.node == delta.node
    assert full.position == position
    training.check()


def test_a_full_that_finds_nothing_changed_is_still_a_full(start_training: StartTraining) -> None:
    training = start_training()
    training.save_full()
    training.save_full()
    assert len(training.manifests(Kind.FULL)) == 3
    training.check()


@pytest.mark.I7
def test_the_watermark_only_goes_forward_and_is_in_the_manifest(start_training: StartTraining) -> None:
    training = start_training()
    training.trainer.watermark(20.0)
    training.trainer.watermark(10.0)
    training.train()
    training.save()
    assert training.manifests(Kind.DELTA)[-1].watermark == 20.0


def test_a_large_registered_state_fits_into_the_first_full(
    start_training: StartTraining, tmp_path: Path
) -> None:
    first = start_training()
    first.trainer.states.register("reader", lambda: "x" * 300_000)
    first.train()
    first.save_full()
    assert first.trainer.status.failures == 0
    manifest = first.manifests(Kind.FULL)[-1]
    with BundleReader(tmp_path, manifest.prefix) as reader:
        document = json.loads(reader.read(TRAINER_STATE_TENSOR).tobytes())
    assert len(document["registered"]["reader"]["json"]) == 300_000


def test_a_second_trainer_is_refused_while_the_first_has_the_directory(start_training: StartTraining) -> None:
    start_training()
    with pytest.raises(DirectoryBusyError, match="another trainer"):
        start_training()


def test_a_first_full_that_fails_is_raised_and_gives_the_directory_back(
    start_training: StartTraining,
) -> None:
    disk = BrokenDisk()
    disk.fill()
    with pytest.raises(CommitError, match="No space left"):
        start_training(disk=disk)
    start_training()


class InterruptedVariable(ResourceVariable):
    """A real variable; when `uses_left` is set, Ctrl-C comes at the use after so many."""

    uses_left = math.inf

    @property
    def handle(self) -> Any:
        if self.uses_left <= 0:
            self.uses_left = math.inf
            raise KeyboardInterrupt
        self.uses_left -= 1
        return super().handle


def test_a_cut_that_is_interrupted_loses_no_row(start_training: StartTraining) -> None:
    """At whatever use of the table: when its rows are taken, and when everything was taken and is checked."""
    options = dataclasses.replace(BY_HAND, scrub_saves=1)
    training = start_training(make_table=InterruptedVariable, options=options)
    interrupted = 0
    while True:
        training.train(steps=3)
        training.table.uses_left = interrupted
        try:
            training.trainer.save()
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
        training.save()
        training.check()
    training.table.uses_left = math.inf
    assert interrupted >= 2


@pytest.mark.I9
def test_options_that_cannot_work_raise_at_once() -> None:
    with pytest.raises(ConfigurationError, match="every 0 seconds"):
        SaveEvery(seconds=0)
    with pytest.raises(ConfigurationError, match="every -1 steps"):
        SaveEvery(steps=-1)
    with pytest.raises(ConfigurationError, match="every nan seconds"):
        SaveEvery(seconds=float("nan"))
    with pytest.raises(ConfigurationError, match="keep 0 fulls"):
        WriterOptions(keep_fulls=0)
    with pytest.raises(ConfigurationError, match="scrub_saves is -1"):
        WriterOptions(scrub_saves=-1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writer_thread_that_dies_is_reported_and_never_waited_for() -> None:
    worker = BackgroundWorker("dying")

    def die() -> None:
        raise RuntimeError("a bug")

    worker.submit(die)
    with pytest.raises(HotdeltaError, match="thread dying ended"):
        worker.wait()
    assert worker._thread is not None
    worker._thread.join()
    with pytest.raises(HotdeltaError, match="thread dying ended"):
        worker.submit(die)


def test_what_is_left_to_the_caller_runs_on_the_thread_that_waits_which_meets_what_it_raises() -> None:
    worker, ran_on = CallersWorker("training"), list[threading.Thread]()

    def fail() -> None:
        ran_on.append(threading.current_thread())
        raise RuntimeError("the Session is gone")

    submitter = threading.Thread(target=worker.submit, args=(fail,))
    submitter.start()
    submitter.join()
    assert worker.is_busy
    with pytest.raises(RuntimeError, match="is gone"):
        worker.wait()
    assert ran_on == [threading.current_thread()]
    worker.wait()
    assert worker.stop(0.0)


class BuggyDisk(Disk):
    """While it has a bug, whoever writes rows of a full gets an exception that nobody thought of."""

    def __init__(self) -> None:
        self.has_bug = False
        self._of_fulls: set[int] = set()

    def create(self, path: Path) -> int:
        fd = super().create(path)
        if ".data-" in path.name and path.parent.name != DELTA_DIRECTORY:
            self._of_fulls.add(fd)
        return fd

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.has_bug and fd in self._of_fulls:
            raise RuntimeError("a bug")
        super().write_at(fd, data, offset)

    def close(self, fd: int) -> None:
        self._of_fulls.discard(fd)
        super().close(fd)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_training_is_told_when_the_thread_that_writes_fulls_is_dead(start_training: StartTraining) -> None:
    """Otherwise it would go on with deltas alone, for ever after one full that is never finished."""
    options = WriterOptions(full=SaveEvery(steps=3), delta=SaveEvery(steps=1))
    disk = BuggyDisk()
    training = start_training(options=options, disk=disk)
    disk.has_bug = True
    training.train(3)
    with pytest.raises(HotdeltaError, match="hotdelta-full-writer ended"):
        training.settle_full()
    with pytest.raises(HotdeltaError, match="hotdelta-full-writer ended"):
        training.train()
    with pytest.raises(HotdeltaError, match="hotdelta-full-writer ended"):
        training.trainer.close()
    start_training()


def test_a_full_in_the_making_is_given_up_when_the_trainer_is_closed(start_training: StartTraining) -> None:
    """Closing does not save: the cut that the full would need may fail, as it does here."""
    training = start_training()
    training.train()
    reader: dict[str, object] = {"offset": 3}
    training.trainer.states.register("reader", reader.copy)
    training.trainer.start_full()
    training.settle_full()
    reader["offset"] = {3}
    training.trainer.close()
    assert len(training.manifests(Kind.FULL)) == 1
    assert not list(training.run_dir.glob("*in-progress*"))
    start_training()


@pytest.mark.parametrize("save", [ChainTrainer.save_checked, ChainTrainer.finish])
def test_no_step_is_lost_with_a_check_that_fails(
    start_training: StartTraining, save: Callable[[ChainTrainer, Callable[[], None]], object]
) -> None:
    def check() -> None:
        raise ConfigurationError("what is saved is not what was trained")

    training = start_training()
    training.train(2)
    with pytest.raises(ConfigurationError, match="what was trained"):
        save(training.trainer, check)
    training.remember()
    assert training.manifests(Kind.DELTA)[-1].step == 2
    training.check()
    training.close()


class AskedJob(JobSaves):
    """Counts how often the other trainers would stop for a cut."""

    asked = 0

    def is_ready(self, count: int | None = None) -> bool:
        self.asked += 1
        return super().is_ready(count)


def test_the_job_is_not_asked_for_a_cut_that_cannot_be_taken(
    start_training: StartTraining, tmp_path: Path
) -> None:
    disk = SlowDisk()
    training = start_training(tmp_path / "run", disk=disk, options=deltas_every(steps=1))
    job = training.trainer._job = AskedJob(training.run_dir, None)
    shutil.rmtree(training.run_dir)
    training.trainer.step()
    disk.hold()
    for _ in range(2):
        training.trainer.save_if_due()
    assert job.asked == 0
    disk.open()
    training.settle_full()
    training.trainer.save_if_due()
    assert job.asked == 1
    training.settle_full()
    assert training.manifests(Kind.FULL)[-1].step == 1
