"""Faults of whole histories, in process: forks, older runs, other directories, crowds of deltas, two servers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Kind, Position, names
from tests.chaos.conftest import Prepared, hide_after
from tests.chaos.rig import BEFORE, FULL, NEWEST, NEXT, Bits, Rig, bits_of, rig
from tests.loader.step_model import ROWS, Trainer, commit_paths, rewind

CROWD = 10_000


def learn(rig: Rig, trainer: Trainer, position: Position) -> Position:
    rig.states[position] = bits_of(trainer.model)
    return position


def test_a_trainer_that_rewinds_and_forks_again_and_again(copied: Prepared) -> None:
    root, states = copied
    with rig(root, dict(states)) as ready:
        ready.look()
        ready.require_truth(NEWEST)
        trainer = Trainer(root / "run")
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
        trainer = Trainer(root / "run")
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
        trainer = Trainer(root / "run")
        for ids in (np.arange(0), np.arange(ROWS), np.arange(0)):
            position = learn(ready, trainer, trainer.train(ids))
            ready.look()
            ready.require_truth(position)
        trainer.close()


def test_a_directory_that_is_gone_and_one_with_another_history(copied: Prepared, tmp_path: Path) -> None:
    root, states = copied
    other_root = tmp_path / "other"
    other = Trainer(other_root / "run")
    with rig(root, dict(states)) as ready:
        ready.look()
        ready.require_truth(NEWEST)
        (root / "run").rename(root / "away")
        ready.look()
        ready.require_truth(NEWEST)
        other.train([3])
        position = other.train_full([4])
        ready.states[position] = bits_of(other.model)
        other.close()
        (other_root / "run").rename(root / "run")
        ready.look()
        ready.require_truth(position)
        assert ready.loader.status().reason == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop root")
def test_permissions_that_are_lost(until_next: Prepared) -> None:
    with rig(*until_next) as ready:
        ready.look()
        for path in ready.paths(NEXT):
            ready.go_back(BEFORE)
            path.chmod(0)
            ready.look()
            ready.require_truth(BEFORE, NEXT)
            path.chmod(0o644)
            ready.look()
            ready.require_truth(NEXT)


def test_two_servers_on_one_directory_do_not_disturb_each_other(copied: Prepared) -> None:
    root, states = copied
    known: dict[Position, Bits] = dict(states)
    with rig(root, known) as one, rig(root, known) as other:
        trainer = Trainer(root / "run")
        for number in range(5):
            position = trainer.train([number])
            known[position] = bits_of(trainer.model)
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


@pytest.mark.soak
def test_ten_thousand_tiny_deltas_at_once(copied: Prepared) -> None:
    root, states = copied
    trainer = Trainer(root / "run")
    newest = trainer.train([0])
    for number in range(1, CROWD):
        newest = trainer.train([number % ROWS])
    final = bits_of(trainer.model)
    trainer.close()
    with rig(root, {**states, newest: final}) as ready:
        ready.look()
        ready.require_truth(newest)
        assert ready.commit(newest, Kind.DELTA).position == newest
