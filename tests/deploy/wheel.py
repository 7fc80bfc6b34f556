"""The wheel, built as the Dockerfile and a release build it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.deploy.manifests import ROOT


def build_wheel(directory: Path) -> Path:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(directory), str(ROOT)],
        check=True,
        timeout=120,
    )
    (wheel,) = directory.glob("hotdelta-*.whl")
    return wheel
