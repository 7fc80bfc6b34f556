"""One fault in one delta: what is served after it, and what the loader says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotdelta.chain import Position
from loader import Checks
from loader.observation import Observed
from tests.chaos.conftest import Prepared
from tests.chaos.rig import BEFORE, NEXT, Rig, rig
from tests.loader.step_model import answer

IDS = [2, 9, 33]
ROWS = np.full((3, 4), 77.0, np.float32)

Spoil = Callable[[Rig], None]


@dataclass(frozen=True)
class Outcome:
    """What was served after the fault, and what the loader said of it."""

    rig: Rig
    outputs: dict[str, Any]
    position: Position

    @property
    def observed(self) -> Observed:
        return self.rig.loader._updater.observed

    def require_before(self) -> None:
        found = {name: value.tobytes() for name, value in self.outputs.items()}
        assert found == self.rig.states[BEFORE]


def served_after(prepared: Prepared, spoil: Spoil, checks: Checks | None = None) -> Outcome:
    """Goes back to BEFORE, spoils the delta that leads to NEXT, and looks."""
    with rig(*prepared, checks=checks) as ready:
        ready.look()
        ready.go_back(BEFORE)
        spoil(ready)
        ready.look()
        outputs, version = answer(ready.loader)
        return Outcome(ready, outputs, version.position)


def is_kept_out(prepared: Prepared, spoil: Spoil, checks: Checks | None = None) -> str:
    """Asserts that BEFORE is served bit for bit; the reason that is told."""
    outcome = served_after(prepared, spoil, checks)
    outcome.require_before()
    listed = [item.reason for item in outcome.observed.quarantined if item.node.position == NEXT]
    assert listed
    return listed[0]


def gets_through(prepared: Prepared, spoil: Spoil, checks: Checks | None = None) -> Outcome:
    """Asserts that NEXT is served, and that nobody complained."""
    outcome = served_after(prepared, spoil, checks)
    assert (outcome.position, outcome.observed.quarantined) == (NEXT, ())
    return outcome
