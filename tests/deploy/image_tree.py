"""Runs the services of a compose file in a tree laid out like the image, as nearly as it goes without Docker.

    unshare --mount --net --pid --mount-proc --fork --kill-child python -m tests.deploy.image_tree FILE WHEEL DIRECTORY

Each has a root that is read-only, its volumes, a /tmp and an address of its own, and is user 10001 without
capabilities. The store is the program of that name of this machine; Prometheus and Grafana are not run.
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
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.deploy.manifests import ROOT, TEMPORARY, compose, our_services
from tests.waiting import wait_until

USER = "10001"
HOME = "/home/hotdelta"
INSTALLED = "/opt/hotdelta"
# Of the store, which is not in our image.
STORED = "/store"
_SECRET = re.compile(r"\$\{(\w+)[^}]*}")
_ASK = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/model/version').read().decode())"


def main() -> None:
    file, wheel, directory = (Path(argument).resolve() for argument in sys.argv[1:])
    described = {
        name: service
        for name, service in compose(file)["services"].items()
        if name in (*our_services(file), "store", "bucket")
    }
    network = Network(described)
    tree = Tree(directory)
    tree.lay_out()
    tree.install(wheel)
    tree.show_hosts(network.hosts())
    services = {name: Service(name, service, tree) for name, service in described.items()}
    if "store" in services:
        services["store"].start()
        wait_until(services["store"].is_healthy, services["store"].complaint, limit_seconds=60)
        services["bucket"].start()
        assert services["bucket"].process.wait(60) == 0
    for name in our_services(file):
        services[name].start()
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
        for place in (*server.writable(), TEMPORARY):
            assert server.run("touch", f"{place}/written").returncode == 0, place
    assert [server.stop() for server in servers] == [0, 0]
    assert services["trainer"].stop() in (0, -signal.SIGTERM)
    print("served, followed and stopped as deployed")


class Network:
    """A bridge, and for each service a namespace with an address of its own. All of it ends with this process."""

    def __init__(self, services: Iterable[str]) -> None:
        self._addresses = {name: f"10.0.0.{number}" for number, name in enumerate(services, 2)}
        # What `ip netns` leaves there is ours alone.
        _run("mount", "-t", "tmpfs", "none", "/run")
        _run("ip", "link", "add", "services", "type", "bridge")
        _run("ip", "link", "set", "services", "up")
        for number, (name, address) in enumerate(self._addresses.items()):
            inside = ("ip", "-n", name)
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", f"v{number}", "master", "services", "up")
            _run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
            _run(*inside, "link", "set", "eth0", "up")
            _run(*inside, "link", "set", "lo", "up")

    def hosts(self) -> str:
        return (
            "".join(f"{address} {name}\n" for name, address in self._addresses.items())
            + "127.0.0.1 localhost\n"
        )


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
        for name in (*_data_directories(), STORED, "/proc", TEMPORARY, HOME, INSTALLED):
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

    def show_hosts(self, text: str) -> None:
        hosts = self.volumes / "hosts"
        hosts.parent.mkdir(exist_ok=True)
        hosts.write_text(text)
        _run("mount", "--bind", hosts, self.root / "etc" / "hosts")

    def enter(self, *command: str) -> None:
        _run("chroot", self.root, *command)

    def volume(self, name: str, user: str) -> Path:
        path = self.volumes / name
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, int(user), int(user))
        return path

    def as_user(self, user_id: str, command: list[str], environment: dict[str, str]) -> list[str]:
        """A command line that goes into the tree, gives up all that root may, and keeps nothing of our environment."""
        user = ["--reuid", user_id, "--regid", user_id, "--clear-groups"]
        user += ["--inh-caps=-all", "--bounding-set=-all"]
        variables = [f"{name}={value}" for name, value in {**self.environment, **environment}.items()]
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
        self._user = service.get("user", USER).split(":")[0]
        self._network = service.get("network_mode", f"service:{name}").removeprefix("service:")

    def start(self) -> None:
        root = self._tree.root
        lines = ["set -e", f"mount -t tmpfs -o mode=1777 none {root}{TEMPORARY}"]
        for text in self._service.get("volumes", ()):
            volume, path, *mode = text.split(":")
            lines.append(f"mount --bind {self._tree.volume(volume, self._user)} {root}{path}")
            if mode:
                lines.append(f"mount -o remount,bind,ro {root}{path}")
        lines += [f"mount -o remount,bind,ro {root}", 'exec "$@"']
        words = [*self._service.get("entrypoint", []), *self._service["command"]]
        into = ["ip", "netns", "exec", self._network, "unshare", "--mount"]
        self.process = subprocess.Popen([*into, "sh", "-c", "\n".join(lines), "sh", *self._as_user(words)])

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec` would."""
        into = ["nsenter", "--target", str(self.process.pid), "--mount", "--net"]
        return subprocess.run(
            [*into, *self._as_user(command)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def writable(self) -> list[str]:
        volumes = (text.split(":") for text in self._service.get("volumes", ()))
        return [path for _, path, *mode in volumes if not mode]

    def _as_user(self, command: Sequence[str]) -> list[str]:
        environment = {
            name: _SECRET.sub(r"secret-\1", value)
            for name, value in self._service.get("environment", {}).items()
        }
        words = [word.replace("$$", "$") for word in command]
        return self._tree.as_user(self._user, words, environment)

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


def _data_directories() -> list[str]:
    (line,) = re.findall(r"install --directory .*", (ROOT / "Dockerfile").read_text())
    return re.findall(r"/data/\w+", line)


def _environment() -> dict[str, str]:
    """What the last stage of the Dockerfile sets."""
    (line,) = re.findall(r"^ENV (PATH=.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    variables = dict(item.split("=", 1) for item in line.split())
    # The last of them has the store's program.
    usual = f"/usr/local/bin:/usr/bin:/bin:{Path(sys.prefix, 'bin')}"
    path = variables["PATH"].replace("$PATH", usual)
    return {**variables, "PATH": path, "HOME": HOME}


def _run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    main()
