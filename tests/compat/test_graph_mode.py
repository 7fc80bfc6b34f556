"""Runs the checks of graph_mode/, each file in a process of its own: graph mode is a switch of the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

CHECKS = sorted(path.name for path in (Path(__file__).parent / "graph_mode").glob("checks_of_*.py"))


@pytest.mark.parametrize("name", CHECKS)
def test_graph_mode(name: str) -> None:
    """Run one file by itself with `python -m pytest tests/compat/graph_mode/<file>`."""
    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
        "--hypothesis-profile",
        settings.get_current_profile_name(),
        str(Path(__file__).parent / "graph_mode" / name),
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
