"""Creates .venv-newest with the newest release of everything that pyproject.toml asks for. Standard library only.

Upper bounds are left out: this is for finding out what the releases beyond them break (`make test-newest`). What is
there already is upgraded. pip does the work, so the machine's own index settings apply.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-newest"
# Those whose upper bounds this is about.
BOUNDED = ("fastapi", "httptools", "keras", "starlette", "tensorflow", "uvicorn", "watchdog")

# They ask for `tensorflow`, which the CPU build is not to pip, and for nothing else that is not there anyway.
STUBS = "tensorflow-serving-api"

_UPPER_BOUND = re.compile(r",?\s*<=?\s*[\w.]+")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tests = [each for each in _extra(project, "test") if not each.startswith(STUBS)]
    wanted = [*project["dependencies"], *tests, "hatchling", "editables"]
    if not (ENVIRONMENT / "bin" / "python").exists():
        _run([str(Path(sys.executable).resolve()), "-m", "venv", str(ENVIRONMENT)])
    print("test-newest: installing the newest releases into .venv-newest", flush=True)
    _pip("install", "--upgrade", "--upgrade-strategy", "eager", *(_as_installed(each) for each in wanted))
    _pip("install", "--upgrade", "--no-deps", STUBS)
    # Without its dependencies, whose upper bounds would take the newest releases away again.
    _pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    _tell_versions()


def _extra(project: dict[str, Any], name: str) -> list[str]:
    """What an extra asks for, with what the extras that it names ask for: no index has this project."""
    wanted: list[str] = []
    for requirement in project["optional-dependencies"][name]:
        others = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", requirement)
        if others is None:
            wanted.append(requirement)
        else:
            wanted.extend(each for other in others[1].split(",") for each in _extra(project, other))
    return wanted


def _as_installed(requirement: str) -> str:
    """Without upper bounds, and as the lock does with the CPU build of TensorFlow where there is one."""
    specifier, marker, condition = requirement.partition(";")
    if re.match(r"tensorflow\b", specifier) and _has_cpu_build():
        specifier = specifier.replace("tensorflow", "tensorflow-cpu", 1)
    return f"{_UPPER_BOUND.sub('', specifier)}{marker}{condition}"


def _has_cpu_build() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _pip(*arguments: str) -> None:
    options = ["--quiet", "--no-input", "--disable-pip-version-check"]
    _run([str(ENVIRONMENT / "bin" / "python"), "-m", "pip", *arguments, *options])


def _tell_versions() -> None:
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "freeze"]
    frozen = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    print(
        "test-newest:", *(line for line in frozen.stdout.splitlines() if line.startswith(BOUNDED)), flush=True
    )


def _run(command: list[str]) -> None:
    if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        sys.exit(f"test-newest: this failed: {' '.join(command)}")


if __name__ == "__main__":
    main()
