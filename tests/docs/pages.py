"""The examples on the pages for users: README.md and docs/*.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PYTHON = "python"
FRAGMENT = "python fragment"

_FENCED = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """What stands between two fences; `info` is what is written behind the first."""

    page: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def run(self, scope: dict[str, Any], changes: Mapping[str, str]) -> None:
        """As it is printed, but for `changes`, each of which has to be needed."""
        text = self.text
        for old, new in changes.items():
            assert old in text, f"{self}: {old}"
            text = text.replace(old, new)
        # Empty lines before it, so that a traceback shows the line of the page.
        exec(compile("\n" * self.line + text, self.page, "exec"), scope)  # noqa: S102


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["info"].strip(), found["text"])
        for found in _FENCED.finditer(text)
    ]


def imports_of(blocks: Iterable[Block]) -> str:
    """The import statements of these blocks: those that a reader has seen who comes to the next one."""
    lines = (line for block in blocks for line in block.text.splitlines())
    return "\n".join(line for line in lines if line.startswith(("import ", "from ")))
