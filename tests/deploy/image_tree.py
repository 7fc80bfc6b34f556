"""Runs the services of docker-compose.yml in a tree laid out like the image, as nearly as it goes without Docker.

    unshare --mount --pid --mount-proc --fork --kill-child python -m tests.deploy.image_tree WHEEL DIRECTORY

Each has a root that is read-only, its volumes, a /tmp and a network of its own, and is user 10001 without capabilities.
Python and the libraries are those of this machine; TensorFlow's headers are hidden, as the Dockerfile deletes them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

from tests.deploy.manifests import ROOT, TEMPORARY, our_services
from tests.waiting import wait_until

USER = "10001"
HOME = "/home/hotdelta"
INSTALLED = "/opt/hotdelta"
_ASK = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/model/version').read().decode())"


def main() -> None:
    wheel, directory = (Path(argument).resolve() for argument in sys.argv[1:])
    tree = Tree(directory)
    tree.lay_out()
    tree.install(wheel)
    services = {name: Service(name, service, tree) for name, service in our_services().items()}
    for service in services.values():
        service.start()
    assert services["exporter"].process.wait(300) == 0
    servers = [service for name, service in services.items() if name.startswith("server")]
    assert len(servers) == 2
    for service in (services["trainer"], *servers):
        wait_until(service.is_healthy, service.complaint, limit_seconds=60, poll_seconds=0.5)
    for server in servers:
        wait_until(
            partial(server.is_past, server.position()),
            f"{server.name} follows",
            limit_seconds=60,
            poll_seconds=0.5,
        )
        for place in (HOME, "/data/run", "/data/export", INSTALLED):
            assert server.run("touch", f"{place}/written").returncode != 0, place
        for place in ("/data/state", TEMPORARY):
            assert server.run("touch", f"{place}/written").returncode == 0, place
    assert [server.stop() for server in servers] == [0, 0]
    assert services["trainer"].stop() in (0, -signal.SIGTERM)
    print("served, followed and stopped as deployed")


class Tree:
    """The root of the image. It is set up as root, in a mount namespace that ends with this process."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.volumes = directory / "volumes"
        self.environment = _environment()

    def lay_out(self) -> None:
        self.root.mkdir(parents=True)
        _run("mount", "--bind", self.root, self.root)
        for name in ("usr", "etc", "dev"):
            self._show(Path("/", name))
        for name in ("bin", "lib", "lib64"):
            (self.root / name).symlink_to(f"usr/{name}")
        for place in {Path(sys.base_prefix), Path(sys.prefix)}:
            if not place.is_relative_to("/usr"):
                self._show(place)
        packages = Path(sysconfig.get_path("purelib"))
        _run("mount", "-t", "tmpfs", "none", self._inside(packages / "tensorflow" / "include"))
        for name in ("/data/run", "/data/export", "/data/state", "/proc", TEMPORARY, HOME, INSTALLED):
            self._inside(Path(name)).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "proc", "proc", self.root / "proc")
        shutil.copytree(ROOT / "examples", self._inside(Path(HOME, "examples")))

    def install(self, wheel: Path) -> None:
        """What the lock installs into the image is taken from the environment of the tests, without our own code."""
        shutil.copy(wheel, self.root / "tmp")
        python = f"{INSTALLED}/bin/python"
        self.enter(sys.executable, "-m", "venv", "--without-pip", INSTALLED)
        options = ["--quiet", "--disable-pip-version-check", "--python", python]
        self.enter(
            sys.executable,
            "-m",
            "pip",
            *options,
            "install",
            "--no-deps",
            "--no-index",
            f"{TEMPORARY}/{wheel.name}",
        )
        packages = self._inside(Path(INSTALLED)) / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        # A path alone: the .pth of the editable install there is not read.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def enter(self, *command: str) -> None:
        _run("chroot", self.root, *command)

    def volume(self, name: str) -> Path:
        path = self.volumes / name
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, int(USER), int(USER))
        return path

    def as_user(self, command: list[str]) -> list[str]:
        """A command line that goes into the tree, gives up all that root may, and keeps nothing of our environment."""
        user = ["--reuid", USER, "--regid", USER, "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        inside = ["env", "--ignore-environment", f"--chdir={HOME}", *variables, *command]
        return ["chroot", str(self.root), "setpriv", *user, "--no-new-privs", *inside]

    def _inside(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def _show(self, path: Path) -> None:
        self._inside(path).mkdir(parents=True, exist_ok=True)
        _run("mount", "--rbind", path, self._inside(path))


class Service:
    """One service of the compose file."""

    def __init__(self, name: str, service: dict[str, Any], tree: Tree) -> None:
        self.name = name
        self._service = service
        self._tree = tree

    def start(self) -> None:
        root = self._tree.root
        lines = ["set -e", "ip link set lo up", f"mount -t tmpfs none {root}{TEMPORARY}"]
        for text in self._service["volumes"]:
            volume, path, *mode = text.split(":")
            lines.append(f"mount --bind {self._tree.volume(volume)} {root}{path}")
            if mode:
                lines.append(f"mount -o remount,bind,ro {root}{path}")
        lines += [f"mount -o remount,bind,ro {root}", 'exec "$@"']
        command = self._tree.as_user(self._service["command"])
        into = ["unshare", "--mount", "--net"]
        self.process = subprocess.Popen([*into, "sh", "-c", "\n".join(lines), "sh", *command])

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec` would."""
        into = ["nsenter", "--target", str(self.process.pid), "--mount", "--net"]
        return subprocess.run(
            [*into, *self._tree.as_user(list(command))],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def is_healthy(self) -> bool:
        assert self.process.poll() is None, self.name
        self._asked = self.run(*self._service["healthcheck"]["test"][1:])
        return self._asked.returncode == 0

    def complaint(self) -> str:
        return f"{self.name} is not healthy: {self._asked.stderr}"

    def position(self) -> tuple[int, ...]:
        version = json.loads(self.run("python", "-c", _ASK).stdout)
        return tuple(int(part) for part in version["position"].split("."))

    def is_past(self, position: tuple[int, ...]) -> bool:
        return self.position() > position

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(float(self._service["stop_grace_period"].removesuffix("s")))


def _environment() -> dict[str, str]:
    """What the last stage of the Dockerfile sets."""
    (line,) = re.findall(r"^ENV (PATH=.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    variables = dict(item.split("=", 1) for item in line.split())
    path = variables["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
    return {**variables, "PATH": path, "HOME": HOME}


def _run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    main()
