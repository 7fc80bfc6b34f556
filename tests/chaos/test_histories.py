"""Faults of whole histories, in process: forks, older runs, other directories, crowds of deltas, two servers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Position
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError
from loader import Checks
from loader.files.delta_in_memory import DeltaFiles
from tests.chaos.conftest import Prepared, hide_after
from tests.chaos.rig import BEFORE, FULL, NEWEST, NEXT, Bits, Rig, rig
from tests.loader.step_model import ROWS, KeyedStepModel, Trainer, commit_paths, rewind

pytestmark = pytest.mark.I4


def learn(rig: Rig, trainer: Trainer, position: Position) -> Position:
    rig.states[position] = trainer.model.bits()
    return position


def test_a_trainer_that_rewinds_and_forks_again_and_again(copied: Prepared) -> None:
    root, states = copied
    with rig(root, dict(states)) as ready:
        ready.look()
        ready.require_truth(NEWEST)
        trainer = Trainer(root / "run", model=KeyedStepModel())
        learn(ready, trainer, trainer.train([1]))
        for number in range(6):
            newest = learn(ready, trainer, trainer.train([number]))
            ready.look()
            ready.require_truth(newest)
            trainer = rewind(trainer)
            forked = learn(ready, trainer, trainer.train([number + 20]))
            ready.look()
            ready.require_truth(forked)
        trainer.close()


def test_deltas_of_an_older_run_that_arrive_late_change_nothing(copied: Prepared) -> None:
    root, states = copied
    with rig(root, dict(states)) as ready:
        ready.look()
        trainer = Trainer(root / "run", model=KeyedStepModel())
        lost = ready.commit(NEWEST)
        newest = learn(ready, trainer, trainer.train([7]))
        for path in commit_paths(root / "run", lost):
            shutil.copy(path, root / path.name)
            path.unlink()
        ready.look()
        served = ready.require_truth(NEWEST, newest)
        for path in commit_paths(root / "run", lost):
            shutil.copy(root / path.name, path)
        ready.look()
        assert ready.require_truth(newest) >= served
        trainer.close()


def test_an_empty_delta_and_one_of_every_row(copied: Prepared) -> None:
    root, states = copied
    with rig(root, dict(states)) as ready:
        ready.look()
        trainer = Trainer(root / "run", model=KeyedStepModel())
        for ids in (np.arange(0), np.arange(ROWS), np.arange(0)):
            position = learn(ready, trainer, trainer.train(ids))
            ready.look()
            ready.require_truth(position)
        trainer.close()


def test_a_directory_that_is_gone_and_one_with_another_history(copied: Prepared, tmp_path: Path) -> None:
    root, states = copied
    other_root = tmp_path / "other"
    other = Trainer(other_root / "run", model=KeyedStepModel())
    with rig(root, dict(states)) as ready:
        ready.look()
        ready.require_truth(NEWEST)
        (root / "run").rename(root / "away")
        ready.look()
        ready.require_truth(NEWEST)
        other.train([3])
        position = other.train_full([4])
        ready.states[position] = other.model.bits()
        other.close()
        (other_root / "run").rename(root / "run")
        ready.look()
        ready.require_truth(position)
        assert ready.loader.status().reason == ""


def test_files_that_could_not_be_read_for_long_are_read_when_they_can_be(until_next: Prepared) -> None:
    """Nothing of the files changes when a network file system comes back."""
    is_away = [True]

    def read_in_the_end(delta: DeltaFiles) -> None:
        if delta.manifest.position == NEXT and is_away[0]:
            raise DamagedError("it cannot be read", path=delta.prefix, position=str(NEXT), retryable=True)
        delta.require_digests()

    with rig(*until_next, checks=Checks(digests=read_in_the_end)) as ready:
        for _ in range(4):
            ready.look()
            ready.require_truth(BEFORE)
            assert "it cannot be read" in ready.loader.status().reason
        is_away[0] = False
        ready.look()
        ready.require_truth(NEXT)
        assert ready.loader.status().reason == ""


def test_files_that_were_replaced_right_after_they_were_found_damaged_are_used(until_next: Prepared) -> None:
    """Nothing tells that they changed: when it was looked which files they are, they were whole already."""
    is_damaged = [True]

    def find_damage_once(delta: DeltaFiles) -> None:
        if delta.manifest.position == NEXT and is_damaged[0]:
            raise DamagedError("it is damaged", path=delta.prefix, position=str(NEXT))

    with rig(*until_next, checks=Checks(digests=find_damage_once)) as ready:
        ready.look()
        ready.require_truth(BEFORE)
        assert [item.node.position for item in ready.loader.status().quarantined] == [NEXT]
        is_damaged[0] = False
        ready.look()
        ready.require_truth(NEXT)


def test_two_servers_on_one_directory_do_not_disturb_each_other(copied: Prepared) -> None:
    root, states = copied
    known: dict[Position, Bits] = dict(states)
    with rig(root, known) as one, rig(root, known) as other:
        trainer = Trainer(root / "run", model=KeyedStepModel())
        for number in range(5):
            position = trainer.train([number])
            known[position] = trainer.model.bits()
            one.look()
            other.look()
            one.require_truth(position)
            other.require_truth(position)
            one.go_back(NEXT)
            other.require_truth(position)
        trainer.close()


def test_a_full_and_deltas_that_vanish_while_they_are_followed(copied: Prepared) -> None:
    """Retention: the manifest goes first, then its files, one look after each."""
    root, states = copied
    hide_after(root, NEXT)
    with rig(root, dict(states)) as ready:
        ready.look()
        ready.require_truth(NEXT)
        for path in reversed(ready.paths(Position(1, 3))):
            path.unlink()
            ready.look()
            ready.require_truth(NEXT)
        for path in sorted((root / "later").iterdir()):
            is_full = path.name.startswith(names.FULL_STEM)
            shutil.move(path, root / "run" / ("" if is_full else names.DELTA_DIRECTORY) / path.name)
            ready.look()
            ready.require_truth(NEXT, FULL, NEWEST)
        ready.look()
        ready.require_truth(NEWEST)
