"""Reading the bundle of a full while somebody changes what lies under its names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Position
from hotdelta.chain.bundle.reader import BundleRows
from hotdelta.errors import DamagedError
from tests.chaos.rig import remove
from tests.loader.step_model import commit_paths, find_commit

pytestmark = pytest.mark.I4


@pytest.fixture
def paths(root: Path) -> dict[str, Path]:
    """The index and the data file of a full that serving reads."""
    found = commit_paths(root / "run", find_commit(root / "run", Position(1, 1), Kind.FULL))
    return {
        "index": next(path for path in found if path.suffix == ".index"),
        "data": next(path for path in found if "data-00000" in path.name),
    }


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["index", "data"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(paths: dict[str, Path], what: str) -> None:
    prefix = paths["index"].with_suffix("")
    remove(paths[what])
    os.mkfifo(paths[what])
    with pytest.raises(DamagedError, match="not a regular file") as caught, BundleRows(prefix) as bundle:
        bundle.read_rows("users", 0, 3)
    assert caught.value.retryable


@pytest.mark.parametrize("what", ["index", "data"])
def test_a_link_in_the_place_of_a_file_is_not_followed(paths: dict[str, Path], what: str) -> None:
    prefix = paths["index"].with_suffix("")
    away = paths[what].rename(paths[what].parent.parent / "away")
    paths[what].symlink_to(away)
    with pytest.raises(DamagedError, match="cannot be read"), BundleRows(prefix) as bundle:
        bundle.read_rows("users", 0, 3)
