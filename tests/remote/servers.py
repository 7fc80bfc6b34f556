"""Real servers that speak S3, as processes: SeaweedFS, which keeps its promises, and rclone, which does not.

A test asks for the fixture `seaweedfs` (one server for all tests of a process) or `s3_address` (a place of its own in
it); the credentials are in the environment, so that programs that a test starts have them, too.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hotdelta.errors import StoreError
from hotdelta.remote.stores.opening import open_store

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
# Of somebody whom SeaweedFS lets only read, as servers of models do.
READER = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "no-secret-either"}
BUCKET = "tests"

_LIMIT_SECONDS = 90.0
_STARTS = 5
# Above these the system gives ports to connections of its own.
_PORTS = range(12_000, 32_000)
# Not the source of chance that tests set, and with it those of other processes: they would all choose the same ports.
_CHANCE = random.SystemRandom()
_PROGRAMS = Path(sys.executable).parent


class S3Server:
    """A process that speaks S3 at a port of loopback. What was put is still there when it is started again."""

    def __init__(
        self, directory: Path, command: Callable[[Path, Sequence[int]], list[str]], ports: int
    ) -> None:
        self._directory = directory
        self._command = command
        self._port_count = ports
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[int] = []
        directory.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def port(self) -> int:
        return self._ports[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address(self, prefix: str = "", *, endpoint: str = "") -> str:
        """`endpoint`: that of somebody between, for example of a proxy."""
        return f"s3://{BUCKET}/{prefix}?endpoint={endpoint or self.endpoint}"

    def new_address(self) -> str:
        """A place that nobody has used."""
        return self.address(f"{uuid.uuid4().hex[:12]}/run")

    def start(self) -> None:
        """At the same port as before, if it ran before."""
        for _ in range(_STARTS):
            ports = self._ports or free_ports(self._port_count)
            with (self._directory / "log").open("ab") as log:
                process = subprocess.Popen(
                    self._command(self._directory, ports),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                )
            self._process = process
            if _takes_objects(process, self.address("ready", endpoint=f"http://127.0.0.1:{ports[0]}")):
                self._ports = list(ports)
                return
            self.kill()
        raise AssertionError(f"no S3 server:\n{(self._directory / 'log').read_text()[-3000:]}")

    def kill(self) -> None:
        """kill -9: its own way to end takes long."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running_seaweedfs(directory: Path) -> Iterator[S3Server]:
    server = S3Server(directory, _seaweedfs, ports=8)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def running_rclone(directory: Path) -> Iterator[S3Server]:
    """A server that ignores the conditions of a put."""
    server = S3Server(directory, _rclone, ports=1)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def credentials_in_environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _seaweedfs(directory: Path, ports: Sequence[int]) -> list[str]:
    identities = [
        _identity(CREDENTIALS, ["Admin", "Read", "List", "Tagging", "Write"]),
        _identity(READER, ["Read", "List"]),
    ]
    (directory / "identities.json").write_text(json.dumps({"identities": identities}))
    (directory / "data").mkdir(exist_ok=True)
    named = ("s3", "master", "volume", "filer")
    listening = {f"{name}.port": port for name, port in zip(named, ports[:4], strict=True)}
    listening |= {f"{name}.port.grpc": port for name, port in zip(named, ports[4:], strict=True)}
    options: dict[str, object] = {
        "dir": directory / "data",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 40,
        "s3.config": directory / "identities.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        # In its working directory: others would lie under /tmp, and names of sockets are short.
        "s3.localSocket": "s3.sock",
        "filer.localSocket": "filer.sock",
        **listening,
    }
    return [
        str(_PROGRAMS / "weed"),
        "server",
        "-s3",
        *(f"-{name}={value}" for name, value in options.items()),
    ]


def _identity(credentials: Mapping[str, str], actions: Sequence[str]) -> dict[str, object]:
    key_id, secret = credentials.values()
    return {
        "name": key_id,
        "credentials": [{"accessKey": key_id, "secretKey": secret}],
        "actions": actions,
    }


def _rclone(directory: Path, ports: Sequence[int]) -> list[str]:
    (directory / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
    pair = ",".join(CREDENTIALS.values())
    return [
        *(str(_PROGRAMS / "rclone"), "serve", "s3", "--config", os.devnull),
        *("--addr", f"127.0.0.1:{ports[0]}", "--auth-key", pair, str(directory / "data")),
    ]


def free_ports(count: int) -> list[int]:
    """Which nobody uses now; no connection is given one of them later, as it would be one that the system chose."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = _CHANCE.choice(_PORTS)
            each = stack.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("", port))
                ports.append(port)
        return ports


def _takes_objects(process: subprocess.Popen[bytes], address: str) -> bool:
    """False when the process has ended: another one had one of its ports."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    store = open_store(address)
    while process.poll() is None and time.monotonic() < deadline:
        try:
            store.put("ready", b"for objects that are not empty it needs a volume")
        except StoreError:
            time.sleep(0.1)
        else:
            return True
    return False
