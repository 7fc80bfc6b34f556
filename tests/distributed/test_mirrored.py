from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.distributed.mirrored_program import SCENARIOS

pytestmark = pytest.mark.I1


@pytest.fixture(scope="module")
def found() -> dict[str, str | None]:
    """What every scenario found, from one process with two logical CPUs."""
    program = [sys.executable, "-m", "tests.distributed.mirrored_program"]
    result = subprocess.run(program, stdout=subprocess.PIPE, check=True)
    outcomes: dict[str, str | None] = json.loads(result.stdout)
    return outcomes


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_under_mirrored_strategy(scenario: str, found: dict[str, str | None]) -> None:
    assert found[scenario] is None, found[scenario]
