"""The tasks of a job of several trainers: trainer 0, which may kill itself in the middle of a save, and the others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import tensorflow as tf

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.names import MANIFEST_SUFFIX
from hotdelta.train import Job, TrainerProgress
from hotdelta.train.model.assembly import assemble
from hotdelta.train.model.optimizer_slots import KeyedVariable
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery
from tests.distributed.reports import say


def train_along(run_dir: str, trainer_id: int, trainers: int, report: str) -> None:
    """Trainer 1, 2 and so on of a job: its reader moves on by one with every step."""
    with TrainerProgress(run_dir, Job("ranking", trainer_id, trainers)) as progress:
        resumed = progress.resumed
        place = resumed.registered["reader"] if resumed else 0
        progress.register_state("reader", lambda: place)
        say(report, "resumed", [resumed.step, place] if resumed else None)
        while not Path(f"{report}.stop").exists():
            place += 1
            progress.step()
            say(report, "step", place)
            time.sleep(0.005)
    say(report, "saved", place)


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
    say(report, "resumed", [resumed.step, resumed.state["place"]] if resumed else None)
    while not Path(f"{report}.stop").exists():
        weight.assign_add(1.0)
        trainer.step()
        is_dying = Path(f"{report}.die").exists()
        if is_dying and dies == "before it asks":
            _die()
        if is_dying:
            disk.dies = dies
        say(report, "saves", trainer.progress.step)
        say(report, "saved position", str(trainer.save()))
        time.sleep(0.005)
    trainer.close()
    say(report, "saved", trainer.progress.step)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
