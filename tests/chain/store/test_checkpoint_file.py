"""TensorFlow's state file is written beside whatever lies in the directory."""

from __future__ import annotations

import os
from pathlib import Path

from hotdelta.chain.format import names
from hotdelta.chain.store.checkpoint_file import list_fulls


def test_a_pipe_in_the_place_of_a_manifest_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{names.FULL_STEM}7{names.MANIFEST_SUFFIX}")
    assert list_fulls(tmp_path) == []
