"""How the chain of a loop was written whose tables are named like the slots of others."""

from __future__ import annotations

from pathlib import Path

from tests.golden.golden_chains import digests, write_expected
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
