"""TF1 graphs with their Session; in a process of its own, because graph mode is a switch of the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import hotdelta.io as hio
from hotdelta.errors import ConfigurationError


def test_graphs_with_their_session_are_saved_and_loaded(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.io.session_training", str(tmp_path)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("all is well\n")


def test_a_session_in_a_process_that_is_not_in_graph_mode_is_refused(tmp_path: Path) -> None:
    with (
        tf.compat.v1.Session(graph=tf.Graph()) as session,
        pytest.raises(ConfigurationError, match=r"import hotdelta\.compat\.v1"),
    ):
        hio.save_params(session, tmp_path)
