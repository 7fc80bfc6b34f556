"""What runs in graph mode, which is a switch of the whole process: `python -m tests.compat.graph_program DIRECTORY`.

A program for tests.forks.
"""

from __future__ import annotations

import sys

import pytest

from tests.compat import cluster_program, estimator_task, keyed_cluster_program
from tests.forks import serve_forks


def check(path: str, profile: str, marks: str) -> None:
    """The tests of one file that are marked so."""
    options = ["-q", "-p", "no:cacheprovider", "-W", "default", "--hypothesis-profile", profile, "-m", marks]
    sys.exit(pytest.main([*options, path]))


if __name__ == "__main__":
    serve_forks(
        {
            "check": check,
            "cluster": cluster_program.run_task,
            "keyed cluster": keyed_cluster_program.run_task,
            "estimator": estimator_task.run_task,
        }
    )
