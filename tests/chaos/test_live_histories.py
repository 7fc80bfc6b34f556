"""Histories of all kinds under a real server: forks, older runs, crowds, retention, another directory in its place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Disk, Position, Scanner, delete
from tests.chaos.conftest import Prepared
from tests.chaos.programs import follow
from tests.chaos.rig import NEWEST
from tests.chaos.truth import Health, Truth
from tests.loader.step_model import ROWS, KeyedStepModel, Trainer, bring_back, find_commit, move_away, rewind

pytestmark = pytest.mark.I4

CI_CROWD, SOAK_CROWD = 250, 10_000
# What one of the crowd takes on a disk, generously.
DELTA_BYTES = 64 * 1024


class Followed:
    """A trainer in this process, and a server process that follows its directory."""

    def __init__(self, root: Path, truth: Truth) -> None:
        self.root = root
        self.run = root / "run"
        self.truth = truth
        self.server = follow(root)
        self._health = Health(self.server)
        self.trainer = Trainer(self.run, model=KeyedStepModel())

    def learn(self, position: Position) -> Position:
        self.truth.learn(position, self.trainer.model.bits())
        return position

    def require(self, position: Position | str) -> None:
        """It is served, and all is well."""
        self.truth.wait_for(self.server, position)
        self._health.require()

    def close(self) -> None:
        self.trainer.close()
        self.server.kill()


@pytest.fixture(scope="module")
def followed(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    root = tmp_path_factory.mktemp("histories")
    shutil.copytree(prepared[0], root, dirs_exist_ok=True)
    running = Followed(root, Truth(prepared[1]))
    running.require(NEWEST)
    yield running
    running.close()


def test_a_trainer_that_rewinds_and_forks(followed: Followed) -> None:
    for number in range(4):
        for _ in range(3):
            followed.require(followed.learn(followed.trainer.train([number])))
        followed.trainer = rewind(followed.trainer)
        followed.require(followed.learn(followed.trainer.train([number + 20])))


def test_deltas_of_an_older_run_that_arrive_late(followed: Followed, tmp_path: Path) -> None:
    old = followed.learn(followed.trainer.train([5]))
    followed.require(old)
    manifest = find_commit(followed.run, old)
    followed.trainer.close()
    followed.trainer = Trainer(followed.run, model=KeyedStepModel())
    move_away(followed.run, manifest, tmp_path / "away")
    newest = followed.learn(followed.trainer.train([6]))
    followed.require(newest)
    bring_back(followed.run, manifest, tmp_path / "away")
    followed.truth.ask(followed.server)
    followed.require(followed.learn(followed.trainer.train([7])))


def test_an_empty_delta_and_one_of_every_row(followed: Followed) -> None:
    for ids in (np.arange(0), np.arange(ROWS), np.arange(0)):
        followed.require(followed.learn(followed.trainer.train(ids)))


def test_retention_while_the_server_follows(followed: Followed) -> None:
    """All but the newest full and what leads on from it goes, again and again."""
    for number in range(5):
        newest = followed.learn(followed.trainer.train_full([number]))
        for manifest in Scanner(followed.run).scan().manifests:
            if manifest.position < newest:
                delete(followed.run, manifest, Disk())
                followed.truth.ask(followed.server)
        followed.require(newest)
        followed.require(followed.learn(followed.trainer.train([number])))


def test_a_directory_with_another_history_takes_the_place_of_this_one(
    followed: Followed, tmp_path: Path
) -> None:
    other = Trainer(tmp_path / "run", model=KeyedStepModel())
    other.train([3])
    position = other.train_full([4])
    followed.trainer.close()
    followed.run.rename(tmp_path / "old")
    followed.truth.ask(followed.server)
    other.close()
    followed.truth.learn(position, other.model.bits())
    (tmp_path / "run").rename(followed.run)
    followed.require(position)
    followed.trainer = Trainer(followed.run, model=KeyedStepModel())
    followed.require(followed.learn(followed.trainer.train([8])))


def find_memory(needed_bytes: int) -> str | None:
    """A directory in memory with so much room: there nobody waits until a file is durable. None where is none."""
    memory = Path("/dev/shm")  # noqa: S108 (the directory in it is made by tempfile)
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > needed_bytes
    return str(memory) if has_room else None


def crowd(followed: Followed, deltas: int) -> None:
    """So many deltas come at once: the server sees none of them before they are all there."""
    # On a disk, waiting until each of them is durable takes longer than all the rest.
    with tempfile.TemporaryDirectory(dir=find_memory(deltas * DELTA_BYTES)) as scratch:
        away = Path(scratch) / "run"
        shutil.copytree(followed.run, away)
        followed.trainer.close()
        trainer = Trainer(away, model=KeyedStepModel())
        positions = [
            followed.truth.learn(trainer.train([number % ROWS]), trainer.model.bits())
            for number in range(deltas)
        ]
        trainer.close()
        shutil.copytree(away, followed.root / "after")
    followed.run.rename(followed.root / "before")
    (followed.root / "after").rename(followed.run)
    followed.require(positions[-1])
    shutil.rmtree(followed.root / "before")
    followed.trainer = Trainer(followed.run, model=KeyedStepModel())


def test_hundreds_of_tiny_deltas_at_once(followed: Followed) -> None:
    crowd(followed, CI_CROWD)


@pytest.mark.soak
def test_ten_thousand_tiny_deltas_at_once(followed: Followed) -> None:
    crowd(followed, SOAK_CROWD)
