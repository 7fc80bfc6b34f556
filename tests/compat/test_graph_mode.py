"""Runs the checks of graph_mode/, each file in a process of its own: graph mode is a switch of the whole process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.forks import Forks
from tests.invariants import marked

PATHS = sorted((Path(__file__).parent / "graph_mode").glob("checks_of_*.py"), key=lambda path: path.name)
CHECKS = [
    pytest.param(path, marks=[getattr(pytest.mark, invariant) for invariant, _ in marked(path)])
    for path in PATHS
]
SOAKED = [path for path in PATHS if "pytest.mark.soak" in path.read_text()]
LIMIT_SECONDS, LONG_SECONDS = 500.0, 3600.0


@pytest.mark.parametrize("path", CHECKS, ids=[path.name for path in PATHS])
def test_graph_mode(path: Path, forks: Forks, tmp_path: Path) -> None:
    """Run one file by itself with `python -m pytest tests/compat/graph_mode/<file>`."""
    run(path, forks, tmp_path, marks="not soak", limit_seconds=LIMIT_SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("path", SOAKED, ids=[path.name for path in SOAKED])
def test_graph_mode_for_long(path: Path, forks: Forks, tmp_path: Path) -> None:
    run(path, forks, tmp_path, marks="soak", limit_seconds=LONG_SECONDS)


def run(path: Path, forks: Forks, tmp_path: Path, *, marks: str, limit_seconds: float) -> None:
    log = tmp_path / "log"
    profile = settings.get_current_profile_name()
    check = forks.start("check", log, path=str(path), profile=profile, marks=marks)
    try:
        assert check.wait(limit_seconds) == 0, log.read_text()[-8000:]
    finally:
        check.kill()
