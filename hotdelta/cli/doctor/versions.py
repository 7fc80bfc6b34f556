"""Which versions of what hotdelta needs are installed, and whether they are those that it was tested with."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

import hotdelta
from hotdelta.cli.doctor.check import Check, ok, warning

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?P<bounds>[^;]*)(?:;(?P<marker>.*))?")
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
# The same code under other names.
_BUILDS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly")}
_SHOWN = ("tensorflow", "keras", "numpy")

FindVersion = Callable[[str], str | None]


def checks(
    requirements: Sequence[str] | None = None, find_version: FindVersion | None = None
) -> Iterator[Check]:
    """`find_version`: that of a distribution, or None when it is not installed."""
    find = find_version or _installed
    shown = [f"hotdelta {hotdelta.__version__}", f"Python {platform.python_version()}"]
    missing, untested = list[str](), list[str]()
    for name, bounds in _read(_requirements() if requirements is None else requirements):
        found = next((known for build in _BUILDS.get(name, (name,)) if (known := find(build))), None)
        if found is None:
            missing.append(name)
        elif not is_within(found, bounds):
            untested.append(f"{name} {found} is not {bounds}")
        if found is not None and name in _SHOWN:
            shown.append(f"{name} {found}")
    if missing:
        yield warning(
            "versions",
            f"not installed: {', '.join(missing)}",
            "looking at chains works; to train, export or serve: pip install hotdelta",
        )
    if untested:
        yield warning(
            "versions",
            "; ".join(untested),
            "it was not tested with these: install a version within the bounds",
        )
    if not missing and not untested:
        yield ok("versions", ", ".join(shown))


def is_within(found: str, bounds: str) -> bool:
    """Bounds as pyproject.toml has them: >= and <, with commas. Releases only: 2.21rc1 counts as 2.21."""
    mine = _numbers(found)
    for operator, bound in _BOUND.findall(bounds):
        other = _numbers(bound)
        size = max(len(mine), len(other))
        left, right = (numbers + (0,) * (size - len(numbers)) for numbers in (mine, other))
        if left < right if operator == ">=" else left >= right:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def _read(requirements: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, bounds) of those that are no extras."""
    for text in requirements:
        found = _REQUIREMENT.fullmatch(text)
        if found and "extra" not in (found["marker"] or ""):
            yield found["name"], found["bounds"].strip()


def _requirements() -> Sequence[str]:
    try:
        return requires("hotdelta") or ()
    except PackageNotFoundError:
        return ()


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
