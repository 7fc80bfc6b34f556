from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotdelta.chain import Position, Scanner
from tests.chaos.rig import FULL, NEWEST, NEXT, Bits, Rig, prepare, rig
from tests.loader.step_model import commit_paths, find_commit

Prepared = tuple[Path, dict[Position, Bits]]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    root = tmp_path_factory.mktemp("chaos")
    return root, prepare(root)


@pytest.fixture
def copied(prepared: Prepared, tmp_path: Path) -> Prepared:
    return copy_of(prepared, tmp_path)


def copy_of(prepared: Prepared, root: Path) -> Prepared:
    shutil.copytree(prepared[0], root, dirs_exist_ok=True)
    return root, prepared[1]


@pytest.fixture
def until_next(copied: Prepared) -> Prepared:
    """The chain ends at NEXT; what comes after it lies in later/."""
    root, states = copied
    hide_after(root, NEXT)
    return root, states


def hide_after(root: Path, position: Position) -> None:
    (root / "later").mkdir()
    for manifest in Scanner(root / "run").scan().manifests:
        if manifest.position > position:
            for path in commit_paths(root / "run", manifest):
                shutil.move(path, root / "later" / path.name)


@pytest.fixture
def delta_rig(until_next: Prepared) -> Iterator[Rig]:
    with rig_before_delta(until_next) as ready:
        yield ready


@contextmanager
def rig_before_delta(until_next: Prepared) -> Iterator[Rig]:
    """Live at NEXT, the last delta on disk."""
    with rig(*until_next) as ready:
        ready.look()
        ready.require_truth(NEXT)
        yield ready


@pytest.fixture
def full_rig(copied: Prepared) -> Iterator[Rig]:
    with rig_before_full(copied) as ready:
        yield ready


@contextmanager
def rig_before_full(copied: Prepared) -> Iterator[Rig]:
    """The delta at FULL is missing, so that only the full leads on to NEWEST."""
    root, states = copied
    manifest = find_commit(root / "run", FULL)
    for path in commit_paths(root / "run", manifest):
        path.unlink()
    with rig(root, states) as ready:
        ready.look()
        ready.require_truth(NEWEST)
        yield ready
