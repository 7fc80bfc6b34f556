"""Writes chains with the code as it is now: `python -m tests.golden.write DIRECTORY NAME...`.

Each in a process of its own, because graph mode is a switch of a whole process.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

RECIPES = {
    "keras": "tests.golden.keras_recipes",
    "forked": "tests.golden.keras_recipes",
    "signed": "tests.golden.keras_recipes",
    "io": "tests.golden.keras_recipes",
    "tf1": "tests.golden.graph_recipes",
    "tf1_servers": "tests.golden.graph_recipes",
    "tf2_servers": "tests.golden.server_recipes",
    "slot_names": "tests.golden.loop_recipes",
    "keyed": "tests.golden.loop_recipes",
}


def main() -> None:
    root, *chosen = sys.argv[1:]
    if len(chosen) != 1:
        for name in chosen or RECIPES:
            subprocess.run([sys.executable, "-m", "tests.golden.write", root, name], check=True)
        return
    (name,) = chosen
    directory = Path(root) / name
    directory.mkdir(parents=True)
    getattr(importlib.import_module(RECIPES[name]), f"write_{name}")(directory)
    _tidy(directory)


def _tidy(directory: Path) -> None:
    """What says where and by whom it was written is no part of the format."""
    for pattern in ("**/trainer.lock", "**/*.pbtxt", "**/events.out.*", "**/*.meta", "**/*.pb.debug"):
        for path in directory.glob(pattern):
            path.unlink()
    for path in directory.glob("**/debug"):
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
