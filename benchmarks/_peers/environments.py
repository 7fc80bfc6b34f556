"""An environment for each peer, with the TensorFlow that we serve with and the peer, as pip puts them together.

They are kept in `build/peers`, and made anew when what they should hold has changed.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "build" / "peers"


# What every Python of an environment does when it starts. Triton brings an interpreter of its own, Python 3.11.0, which
# takes the library of the one that is here; later releases of that ask locks for something that 3.11.0 does not tell.
_AT_START = {
    "nvidia-pytriton": "import _thread, threading, multiprocessing.resource_tracker as tracker; "
    "hasattr(_thread.RLock, '_recursion_count') or setattr(tracker._resource_tracker, '_lock', threading._PyRLock())"
}


class NotInstalledError(Exception):
    """A package that pip could not install here, with its reason."""


def python_with(package: str, *, below: Path = ENVIRONMENTS) -> Path:
    """The Python of an environment with `package`, which is a name and a version. Raises NotInstalledError."""
    wanted = [f"{_tensorflow()}=={tf.__version__}", package]
    name = package.partition("==")[0]
    environment = below / name
    python, stamp = environment / "bin" / "python", environment / "made-from"
    made_from = "\n".join([*wanted, sys.version, str(environment), ""])
    if not stamp.exists() or stamp.read_text() != made_from:
        print(f"  installing {package} beside TensorFlow, which takes a minute", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(environment)])
        options = ["--quiet", "--no-input", "--disable-pip-version-check"]
        _run([str(python), "-m", "pip", "install", *options, *wanted])
        if name in _AT_START:
            (site_packages,) = (environment / "lib").glob("python*/site-packages")
            (site_packages / "at_start.pth").write_text(f"{_AT_START[name]}\n")
        stamp.write_text(made_from)
    return python


def _tensorflow() -> str:
    """The same code at half the size, where it is to be had."""
    has_cpu_build = sys.platform == "linux" and platform.machine() == "x86_64"
    return "tensorflow-cpu" if has_cpu_build else "tensorflow"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalledError((errors or [done.stderr.strip() or f"pip ended with {done.returncode}"])[-1])
