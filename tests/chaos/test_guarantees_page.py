"""docs/guarantees.md names the test that proves each line: all of them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
PLACES = (ROOT, ROOT / "tests" / "chaos", ROOT / "tests" / "loader")
_PROOF = re.compile(r"`([\w/]*test_\w+\.py)?(?:::(test_\w+))?`")


def named_proofs() -> list[tuple[str, str]]:
    """File and test; a test without a file is in the file that was named before."""
    found, file = [], ""
    for named in _PROOF.finditer(PAGE.read_text()):
        file = named[1] or file
        found.append((file, named[2] or ""))
    return found


def read_tests(file: str) -> str:
    return next((place / file).read_text() for place in PLACES if (place / file).is_file())


@pytest.mark.parametrize("file, test", sorted(set(named_proofs())))
def test_every_proof_that_is_named_exists(file: str, test: str) -> None:
    tests = read_tests(file)
    assert not test or f"def {test}(" in tests


def test_there_are_proofs() -> None:
    assert len(named_proofs()) > 40
