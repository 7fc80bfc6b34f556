"""docs/guarantees.md names the test that proves each line: all of them exist, and those of an invariant are marked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.invariants import INVARIANTS, marked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
PLACES = (ROOT, ROOT / "tests" / "chaos", ROOT / "tests" / "loader")
_PROOF = re.compile(r"`([\w/]*(?:test|checks_of)_\w+\.py)?(?:::(test_\w+))?`")


def named_proofs(text: str) -> list[tuple[str, str]]:
    """File and test; a test without a file is in the file that was named before."""
    found, file = [], ""
    for named in _PROOF.finditer(text):
        file = named[1] or file
        found.append((file, named[2] or ""))
    return found


def read_tests(file: str) -> str:
    return next((place / file).read_text() for place in PLACES if (place / file).is_file())


@pytest.mark.parametrize("file, test", sorted(set(named_proofs(PAGE.read_text()))))
def test_every_proof_that_is_named_exists(file: str, test: str) -> None:
    tests = read_tests(file)
    assert not test or f"def {test}(" in tests


def test_there_are_proofs() -> None:
    assert len(named_proofs(PAGE.read_text())) > 40


def marked_proofs(invariant: str) -> set[tuple[str, str]]:
    """Every file and test of the tree with this mark."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name.startswith(("test_", "checks_of_"))]
    return {
        (str(path.relative_to(ROOT)), test)
        for path in files
        for found, test in marked(path)
        if found == invariant
    }


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_the_tests_of_an_invariant_are_those_that_the_page_names(
    invariant: str, pytestconfig: pytest.Config
) -> None:
    (row,) = re.findall(rf"^\| {invariant} \*\*(.*)$", PAGE.read_text(), re.MULTILINE)
    assert set(named_proofs(row)) == marked_proofs(invariant)
    assert marked_proofs(invariant), "an invariant that nothing proves"
    name = row.partition("**")[0]
    assert f"{invariant}: {name} (docs/guarantees.md)" in pytestconfig.getini("markers")
    assert f"{invariant} **{name}**" in (ROOT / "ARCHITECTURE.md").read_text()
