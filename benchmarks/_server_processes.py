"""Model servers as processes, of one or of several processes each."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import httpx
import psutil

START_SECONDS = 120.0
_STOP_SECONDS = 10.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class ServerProcess:
    """A program that listens on `port` of loopback, and all processes that it has started."""

    def __init__(
        self,
        name: str,
        module: str,
        *arguments: str,
        port: int,
        log: Path,
        python: Path = Path(sys.executable),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(python), "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        processes = self._tree()
        self._process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=_STOP_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def ask(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """The first answer that is one; a server that starts is waited for. Raises SystemExit when none comes."""
        deadline = time.monotonic() + START_SECONDS
        said = "nothing"
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                answer = httpx.post(
                    f"{self.url}{path}", content=body, headers=headers, timeout=30.0, trust_env=False
                )
                if answer.status_code == httpx.codes.OK:
                    return answer
                said = answer.text
            except httpx.TransportError as error:
                said = str(error)
            threading.Event().wait(0.1)
        raise SystemExit(f"{self.name} does not answer ({said}):\n{self._log.read_text()[-4000:]}")

    def cpu_seconds(self) -> float:
        """Of all its processes."""
        total = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def own_cpu_seconds(self) -> float:
        """Of the process that was started, without those that it has started."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def children(self) -> list[psutil.Process]:
        return self._tree()[1:]

    def memory_bytes(self) -> int:
        """Resident memory of all its processes; what they share counts for each."""
        return sum(process.memory_info().rss for process in self._tree())

    def _tree(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
