"""Prints the private names that a product class shares with a base class of another library: it overrides or sets them.

What can be read in our own code does not tell: `self._saver = ...` looks like an attribute of ours. Run as a program,
because it imports every product module, and hotdelta.compat.v1 makes a process one of TensorFlow 1.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator

from tests.foreign_names import PACKAGES

LIBRARIES = frozenset({"keras", "tensorflow", "uvicorn", "watchdog", "starlette", "fastapi", "httptools"})


def main() -> None:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for found in _subclasses(object, set()):
        if _package(found) in PACKAGES:
            bases = [base for base in found.__mro__ if _package(base) in LIBRARIES]
            for name in sorted(
                _private_names(found) & {name for base in bases for name in _private_names(base)}
            ):
                print(f"{found.__module__}: {found.__name__}.{name}")


def _subclasses(kind: type, seen: set[type]) -> Iterator[type]:
    subclasses: list[type] = type.__subclasses__(kind)
    for found in subclasses:
        if found not in seen:
            seen.add(found)
            yield found
            yield from _subclasses(found, seen)


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _private_names(kind: type) -> set[str]:
    """What it defines, and what its methods use of themselves."""
    found = set(vars(kind))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        # Made by a program, or in C.
        tree = ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            found.add(node.attr)
    return {name for name in found if re.fullmatch(r"_[a-z]\w*", name) and not name.startswith("_abc_")}


if __name__ == "__main__":
    main()
