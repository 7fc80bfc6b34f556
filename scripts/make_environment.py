"""Creates .venv from the locked versions; does nothing when nothing changed. Standard library only.

Two stamps inside the environment say what it was made from: the lock, the interpreter and the place (a virtual
environment cannot be moved), and the pyproject.toml that this project was installed with. pip does the work, so the
machine's own index settings apply.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "lock.txt"
PROJECT = ROOT / "pyproject.toml"
ENVIRONMENT = ROOT / ".venv"
LOCK_STAMP = ENVIRONMENT / "made-from-lock"
PROJECT_STAMP = ENVIRONMENT / "made-from-project"


def main() -> None:
    # Two makes at once: the second waits, and then finds the work done.
    with LOCK.open() as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not _is_stamped(LOCK_STAMP, _lock_fingerprint()):
            _install_dependencies()
        if not _is_stamped(PROJECT_STAMP, _digest(PROJECT)):
            _install_project()


def _install_dependencies() -> None:
    started = time.monotonic()
    version = sys.version.split()[0]
    print(
        f"setup: installing {LOCK.relative_to(ROOT)} into .venv (Python {version}): "
        "TensorFlow is large, this takes a minute or two",
        flush=True,
    )
    # Resolved, because we may be running from the very environment that is made again.
    _run([str(Path(sys.executable).resolve()), "-m", "venv", "--clear", str(ENVIRONMENT)])
    _pip_install("--require-hashes", "--no-deps", "--requirement", str(LOCK))
    LOCK_STAMP.write_text(_lock_fingerprint())
    print(f"setup: done in {time.monotonic() - started:.0f} s", flush=True)


def _install_project() -> None:
    # Without its dependencies, because it asks for `tensorflow` where the lock has the CPU build.
    _pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    PROJECT_STAMP.write_text(_digest(PROJECT))


def _is_stamped(stamp: Path, fingerprint: str) -> bool:
    return stamp.is_file() and stamp.read_text() == fingerprint


def _lock_fingerprint() -> str:
    return f"{_digest(LOCK)}\n{sys.version}\n{ENVIRONMENT}\n"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pip_install(*arguments: str) -> None:
    options = ["--quiet", "--quiet", "--no-input", "--disable-pip-version-check"]
    _run([str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", *options, *arguments])


def _run(command: list[str]) -> None:
    if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        sys.exit(f"setup: this failed: {' '.join(command)}")


if __name__ == "__main__":
    main()
