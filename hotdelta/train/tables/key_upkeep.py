"""What those who save a table with keys ask of it: which keys came and went, and that it removes some. Plain data."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

# In place of a step or a second that nobody knows.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Moment:
    """Up to where a table is trained: the step, and the event time of the newest example, in whole seconds."""

    step: int
    second: int = UNKNOWN

    @classmethod
    def of(cls, step: int, watermark: float | None) -> Moment:
        return cls(step, UNKNOWN if watermark is None else max(0, int(watermark)))


BEGINNING = Moment(0)


@dataclass(frozen=True, slots=True)
class KeyState:
    """What a cut says of the keys of a table: which only its parent has, how many it has, and how many of them are new.

    None: a step was broken off while it dealt rows, and nobody has counted since. `epoch`: by which the table knows
    its own state again when the cut is committed.
    """

    deleted: Ids
    live: int | None
    new: int | None
    epoch: int


class Upkeep(Protocol):
    """Of a table with keys, as those who save it see it. `lock`: held while its keys are changed, but for steps."""

    lock: AbstractContextManager[Any]

    def forget(self) -> None:
        """Other values were loaded into its variables."""
        ...

    def forget_waiting(self) -> None:
        """No checkpoint has what it kept of keys without a row."""
        ...

    def begin(self, now: Moment) -> None:
        """A chain begins with what it holds, or goes on from there."""
        ...

    def stamp(self, ids: Ids, now: Moment) -> None:
        """These rows were trained until now."""
        ...

    def cut(self) -> KeyState:
        """With the lock held since before the rows of the cut were taken."""
        ...

    def note_committed(self, state: KeyState) -> None:
        """By any thread. Cuts that are not committed need not be told of."""
        ...

    @property
    def is_sweep_due(self) -> bool: ...

    def sweep(self, now: Moment) -> None:
        """On the training thread, between two steps: remove keys whose time has come."""
        ...
