"""The services of the compose files run, as an ordinary user who can write nowhere but to their volumes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.manifests import COMPOSE, COMPOSE_STORE, ROOT
from tests.deploy.wheel import build_wheel

TOOLS = ("unshare", "nsenter", "setpriv", "chroot", "mount", "ip", "wget")


def needs_namespaces() -> None:
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in TOOLS):
        pytest.skip(f"needs root and {', '.join(TOOLS)}")
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork"]
    if subprocess.run([*namespaces, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine gives no namespaces")


@pytest.mark.soak
@pytest.mark.parametrize("file", [COMPOSE, COMPOSE_STORE], ids=["volumes", "store"])
def test_the_services_serve_follow_and_stop_in_a_tree_like_the_image(file: Path, tmp_path: Path) -> None:
    needs_namespaces()
    wheel = build_wheel(tmp_path)

    done = subprocess.run(
        [
            *("unshare", "--mount", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"),
            *(sys.executable, "-m", "tests.deploy.image_tree", str(file), str(wheel), str(tmp_path / "tree")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "served, followed and stopped as deployed" in done.stdout
