"""One deployment for all tests: a server that was there first, a trainer, and an export made by the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.processes import Server, Trainer, question
from tests.waiting import LIMIT_SECONDS

# Long waits: a machine that stands still for seconds is no reason to fail.
FLAGS = ("--grpc-port", "0", "--stop-seconds", "60", "--max-wait-ms", "60000")


@dataclass
class Deployment:
    """Tests may kill and restart its processes, and leave running ones behind."""

    directory: Path
    server: Server
    trainer: Trainer
    before: dict[str, Any]

    @property
    def export_dir(self) -> Path:
        return self.directory / "export"

    @property
    def checkpoint_dir(self) -> Path:
        return self.directory / "run"

    def start_trainer(self) -> None:
        self.trainer = Trainer(self.checkpoint_dir, self.directory / "trainer.log")

    def start_server(self) -> Server:
        return Server(self.export_dir, self.checkpoint_dir, self.directory / "server.log", *FLAGS)


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("deployment")
    server = Server(directory / "export", directory / "run", directory / "server.log", *FLAGS)
    before = {
        "health": server.http.get("/healthz").status_code,
        "ready": server.http.get("/readyz"),
        "predict": server.http.post("/predict", json=question([(0, 0)])),
        "state": server.version()["update_state"],
    }
    trainer = Trainer(directory / "run", directory / "trainer.log")
    deployed = Deployment(directory, server, trainer, before)
    try:
        export(deployed)
        server.wait_until_ready()
        yield deployed
    finally:
        deployed.server.kill()
        deployed.trainer.kill()


def export(deployed: Deployment) -> None:
    command = [sys.executable, "-m", "exporter.cli", "--save-incr-model"]
    command += ["--checkpoint-dir", str(deployed.checkpoint_dir), "--export-dir", str(deployed.export_dir)]
    subprocess.run(
        command, check=True, timeout=LIMIT_SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
