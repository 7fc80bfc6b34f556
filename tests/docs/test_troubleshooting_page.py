"""docs/troubleshooting.md quotes messages and metrics that the programs have, word for word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
PROGRAMS = ("hotdelta", "loader", "server", "exporter")
_ROW = re.compile(r"^\| (?P<cell>[^|]*`[^|]*) \|", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]+)`")


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Every text in it; where a value is put into one stands a line break, which no message has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\n" for part in node.values)


TEXTS = [
    text
    for program in PROGRAMS
    for path in sorted((ROOT / program).rglob("*.py"))
    for text in texts_of(ast.parse(path.read_text()))
]
MESSAGES = [message for row in _ROW.finditer(PAGE) for message in _QUOTED.findall(row["cell"])]
METRICS = sorted(set(re.findall(r"\bhotdelta_[a-z_]+", PAGE)))


def has(text: str, pieces: list[str]) -> bool:
    """Whether it has them in this order."""
    return re.search(".*".join(map(re.escape, pieces)), text, re.DOTALL) is not None


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_quoted_is_in_the_code(message: str) -> None:
    pieces = [piece.strip(" ") for piece in message.split("...")]

    assert any(has(text, pieces) for text in TEXTS)


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_that_is_named_is_in_the_code(metric: str) -> None:
    assert metric in TEXTS
