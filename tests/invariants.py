"""Which tests are marked as proofs of which invariant, read from their sources: `pytest -m I4` runs those of one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

INVARIANTS = tuple(f"I{number}" for number in range(1, 10))
_MARK = re.compile(r"pytest\.mark\.(I\d)\b")


@cache
def marked(path: Path) -> tuple[tuple[str, str], ...]:
    """Each invariant and the test that is marked with it; no test when all of the file are."""
    return tuple(_find_marks(path))


def _find_marks(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from ((invariant, "") for invariant in _MARK.findall(ast.unparse(node.value)))
        elif isinstance(node, ast.FunctionDef):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            yield from ((invariant, node.name) for invariant in _MARK.findall(decorators))
