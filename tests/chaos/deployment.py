"""A trainer process, a copy tool that goes wrong on purpose, and a server process that follows the copy.

The trainer writes to source/, the test copies its files to run/, where the server looks. Every answer of the server
is compared with what the trainer had at the position that the answer names.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from hotdelta.chain import names
from tests.end_to_end.processes import Program, Server
from tests.loader.step_model import ROWS

LIMIT_SECONDS = 60.0
ORDER = (".index", ".data-", names.MANIFEST_SUFFIX)


class Writer(Program):
    """`writer_program`. What it says when it starts is the state that it goes on from."""

    def __init__(self, root: Path) -> None:
        arguments = (str(root / "source"), str(root / "export"))
        super().__init__("tests.chaos.writer_program", *arguments, errors=root / "writer.log")
        self.start = json.loads(self._read_line())

    def begin(self, ids: list[int], *, is_full: bool = False) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"ids": ids, "is_full": is_full}) + "\n")
        self.process.stdin.flush()

    def train(self, ids: list[int], *, is_full: bool = False) -> dict[str, Any]:
        self.begin(ids, is_full=is_full)
        answer: dict[str, Any] = json.loads(self._read_line())
        return answer


class Deployment:
    """One server, one trainer, and the known truth."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.truth: dict[str, dict[str, str]] = {}
        self.answers = 0
        self.writer = Writer(root)
        self.newest = self._learn(self.writer.start)
        self.deliver_all()
        self.server = self._start_server()
        self.wait_for_newest()

    def _start_server(self) -> Server:
        server = Server(self.root / "export", self.root / "run", self.root / "server.log")
        server.wait_until_ready()
        return server

    def _learn(self, told: dict[str, Any]) -> str:
        self.truth[told["position"]] = told["bits"]
        position: str = told["position"]
        return position

    def train(self, *, is_full: bool = False) -> None:
        ids = sorted(self.chance.sample(range(ROWS), self.chance.randrange(1, 9)))
        self.newest = self._learn(self.writer.train(ids, is_full=is_full))

    def new_files(self) -> list[Path]:
        """What the trainer has and the server has not, in the order in which it was written."""
        found = [path for path in self._source_files() if not self.target(path).exists()]
        return sorted(found, key=lambda path: [mark in path.name for mark in ORDER].index(True))

    def _source_files(self) -> list[Path]:
        source = self.root / "source"
        found = [*source.glob("model.ckpt-*"), *(source / names.DELTA_DIRECTORY).glob("incremental_model*")]
        return [path for path in found if any(mark in path.name for mark in ORDER)]

    def target(self, path: Path) -> Path:
        return self.root / "run" / path.relative_to(self.root / "source")

    def deliver(self, path: Path, content: bytes | None = None) -> None:
        """As a good copy tool: a temporary name, then the final one."""
        target = self.target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".tmp-{target.name}")
        temporary.write_bytes(path.read_bytes() if content is None else content)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        temporary.replace(target)

    def deliver_all(self) -> None:
        for path in self.new_files():
            self.deliver(path)

    def heal(self, path: Path) -> None:
        self.deliver(path)

    def ask(self) -> str:
        """One answer, compared with the truth."""
        answer = self.server.http.post("/predict", json={"inputs": {"ids": list(range(ROWS))}})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        position: str = document["version"]["position"]
        for name, expected in self.truth[position].items():
            found = np.array(document["outputs"][name], np.float32).tobytes().hex()
            assert found == expected, f"a wrong answer at {position}: {name}"
        self.answers += 1
        return position

    def wait_for_newest(self) -> None:
        end, pause = time.monotonic() + LIMIT_SECONDS, threading.Event()
        while self.ask() != self.newest:
            assert time.monotonic() < end, f"{self.newest} is not served: {self.server.version()}"
            pause.wait(0.005)

    def kill_server(self) -> None:
        self.server.kill()
        self.server = self._start_server()

    def kill_writer(self) -> None:
        """kill -9 somewhere in a commit, and a new trainer that goes on from what was committed."""
        self.writer.begin([1, 2, 3], is_full=self.chance.random() < 0.3)
        threading.Event().wait(self.chance.random() * 0.03)
        self.writer.kill()
        self.writer = Writer(self.root)
        self.newest = self._learn(self.writer.start)
        self.train()

    def close(self) -> None:
        self.server.kill()
        self.writer.kill()


def is_alive(server: Server) -> bool:
    try:
        return server.http.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False
