"""Prints what CHANGELOG.md says of a version, or why that version cannot be released yet. Standard library only.

python3 scripts/release_notes.py v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: release_notes.py VERSION", file=sys.stderr)
        return 2
    version = arguments[0].removeprefix("v")
    reasons = list(hindrances(ROOT, version))
    for reason in reasons:
        print(f"release: {reason}", file=sys.stderr)
    if not reasons:
        print(notes(ROOT, version))
    return 1 if reasons else 0


def hindrances(root: Path, version: str) -> list[str]:
    """What is still to be written before this version can be released."""
    found = []
    for name, pattern in (
        ("hotdelta/__init__.py", r'^__version__ = "(.*)"$'),
        ("deploy/kubernetes/kustomization.yaml", r'^ *newTag: "(.*)"$'),
    ):
        said = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
        if said != [version]:
            found.append(f"{name} says {', '.join(said) or 'nothing'}, the tag {version}")
    if not notes(root, version):
        found.append(f"CHANGELOG.md says nothing of {version}: it wants a line `## {version} - YYYY-MM-DD`")
    return found


def notes(root: Path, version: str) -> str:
    """From the heading of this version to the next one; empty without it."""
    section = re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)",
        (root / "CHANGELOG.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    return section[1].strip() if section else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
