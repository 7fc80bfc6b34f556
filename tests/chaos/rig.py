"""A loader that looks when it is told to, on a chain whose states are all known."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdelta.chain import Kind, Manifest, Position
from loader import Checks, Clocks, Loader, LoaderSettings
from tests.loader.step_model import (
    KeyedStepModel,
    Trainer,
    answer,
    commit_paths,
    export,
    find_commit,
)
from tests.waiting import LIMIT_SECONDS

BEFORE, NEXT, FULL, NEWEST = Position(1, 4), Position(1, 5), Position(1, 6), Position(1, 7)

Bits = dict[str, bytes]


def prepare(root: Path) -> dict[Position, Bits]:
    """run/ with deltas up to NEXT, a full at FULL and a delta at NEWEST, and an export. What each state holds."""
    trainer = Trainer(root / "run", model=KeyedStepModel())
    states = {Position(1, 1): trainer.model.bits()}
    for ids in ([1, 2], [3], [4, 60], [2, 9, 33]):
        position = trainer.train(ids)
        states[position] = trainer.model.bits()
        if len(states) == 2:
            export(root / "run", root / "export")
    position = trainer.train_full([11])
    states[position] = trainer.model.bits()
    position = trainer.train([12, 13])
    states[position] = trainer.model.bits()
    trainer.close()
    assert {BEFORE, NEXT, FULL, NEWEST} <= states.keys()
    return states


@dataclass
class Rig:
    """One loaded model for thousands of faults. Its clock runs a minute at each look."""

    root: Path
    states: dict[Position, Bits]
    loader: Loader
    clock: list[float]

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    def look(self) -> None:
        self.clock[0] += 60
        self.loader._updater.look_once()
        while self.loader.status().reason.endswith("it is being loaded"):
            assert self.loader._wake.wait(LIMIT_SECONDS), "the export is not loaded"
            self.loader._wake.take()
            self.loader._updater.look_once()

    def require_truth(self, *allowed: Position) -> Position:
        """What is served is exactly what the trainer had at the position that the answer names."""
        outputs, version = answer(self.loader)
        found = {name: value.tobytes() for name, value in outputs.items()}
        assert version.position in allowed, f"{version.position} is served: {self.loader.status()}"
        assert found == self.states[version.position], f"a wrong answer at {version.position}"
        reason = self.loader.status().reason
        assert "unexpected failure" not in reason, reason
        return version.position

    def go_back(self, position: Position) -> None:
        desk = self.loader._desk
        if answer(self.loader)[1].position != position:
            desk.rollback(position)
        desk.resume()
        self.require_truth(position)

    def commit(self, position: Position, kind: Kind = Kind.DELTA) -> Manifest:
        return find_commit(self.run_dir, position, kind)

    def paths(self, position: Position, kind: Kind = Kind.DELTA) -> list[Path]:
        return commit_paths(self.run_dir, self.commit(position, kind))


@contextmanager
def rig(
    root: Path, states: dict[Position, Bits], *, checks: Checks | None = None, **settings: Any
) -> Iterator[Rig]:
    clock = [0.0]
    chosen: dict[str, Any] = {"is_polling_only": True, "late_data_seconds": 1.0, **settings}
    loader = Loader(
        LoaderSettings(root / "export", root / "run", **chosen),
        clocks=Clocks(monotonic=lambda: clock[0]),
        checks=checks,
    )
    try:
        yield Rig(root, states, loader, clock)
    finally:
        loader.stop()


def put(path: Path, content: bytes) -> None:
    """A new file under an old name, as a copy tool leaves it."""
    remove(path)
    path.write_bytes(content)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
