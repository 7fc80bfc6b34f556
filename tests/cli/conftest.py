"""Copies of the golden chains, and the command in this process: nothing here needs TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotdelta.cli import main
from tests.golden.golden_chains import golden_chain


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_here(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run_here


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    """Run 1 has the positions 1.1 to 1.5; run 2 forked from it at 1.3, and has 2.1 and 2.2."""
    return golden_chain("forked").copy_to(tmp_path)


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    """With the key table `users/rows`, and a full of the position 2.1."""
    return golden_chain("keyed").copy_to(tmp_path)
