"""A server that starts does not wait for a pipe that took the place of a file after it was verified."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Schema
from loader import Checks
from loader.checks.sanity_gate import SanityGate
from loader.checks.sanity_statistics import Accepted
from loader.files.commit_files import VerifiedFiles
from tests.chaos.conftest import Prepared
from tests.chaos.rig import FULL, NEWEST, put, rig
from tests.loader.step_model import commit_paths, find_commit, serving_file


class PipeAfterTheLastLook(SanityGate):
    """When the values of a full were found good, nothing but reading it is left to do."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path: Path | None = path

    def check_full(self, files: VerifiedFiles, schema: Schema) -> Accepted:
        accepted = super().check_full(files, schema)
        path, self._path = self._path, None
        if path is not None:
            path.unlink()
            os.mkfifo(path)
        return accepted


@pytest.mark.parametrize("suffix", [".index", ""], ids=["index", "data"])
def test_a_pipe_in_the_place_of_a_full_when_the_server_starts(copied: Prepared, suffix: str) -> None:
    root, states = copied
    run = root / "run"
    for path in commit_paths(run, find_commit(run, FULL)):
        path.unlink()
    full = find_commit(run, FULL, Kind.FULL)
    path = run / f"{full.prefix}.index" if suffix else serving_file(run, full)
    content = path.read_bytes()
    with rig(root, states, checks=Checks(values=PipeAfterTheLastLook(path))) as ready:
        ready.look()
        ready.require_truth(*(position for position in states if position < FULL))
        assert path.is_fifo()
        reasons = [item.reason for item in ready.loader.status().quarantined]
        assert "not a regular file" in " ".join([*reasons, ready.loader.status().reason])
        put(path, content)
        ready.look()
        ready.require_truth(NEWEST)
