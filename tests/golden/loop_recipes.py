"""How the chains of loops were written: of tables named like the slots of others, and of one with keys."""

from __future__ import annotations

from pathlib import Path

from tests.golden.golden_chains import digests, write_expected
from tests.train.keys.keyed_loop import Training
from tests.train.model.tables_named_like_slots import Tables


def write_slot_names(directory: Path) -> None:
    """The one that is kept is of a time when a delta had the ids of tables only: no slot had ids of its own."""
    trained = Tables(directory / "run", seed=1)
    states = {}
    for _ in range(2):
        trained.train()
        states[str(trained.writer.position)] = digests(trained.values())
    trained.writer.close()
    write_expected(directory, states, step=2)


def write_keyed(directory: Path) -> None:
    """Two runs: the second goes on from the first, brings new keys, and writes a full."""
    states = {}
    for run in range(2):
        training = Training(directory / "run")
        for number in range(2):
            training.train([f"user {20 * run + 10 * number + each}" for each in range(15)])
            training.writer.save() if number or not run else training.writer.save_full()
            states[str(training.writer.position)] = digests(training.values())
        training.writer.close()
    write_expected(directory, states, step=4)
