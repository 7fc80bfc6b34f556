"""A trainer process, a copy tool that goes wrong on purpose, and a server process that follows the copy.

The trainer writes to source/, the test copies its files to run/, where the server looks. Every answer of the server
is compared with what the trainer had at the position that the answer names.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotdelta.chain import Scanner
from hotdelta.chain.format import names
from tests.chaos.programs import Writer, follow
from tests.chaos.truth import Health, Truth
from tests.end_to_end.processes import Server
from tests.loader.step_model import ROWS, commit_paths
from tests.waiting import wait_until

ORDER = (".index", ".data-", names.MANIFEST_SUFFIX)


class Deployment:
    """One server, one trainer, and the known truth. The launchers say how their processes are started."""

    def __init__(
        self,
        root: Path,
        chance: random.Random,
        *,
        writer_launcher: Sequence[str] = (),
        server_launcher: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.chance = chance
        self.truth = Truth()
        self.withheld: set[Path] = set()
        self.writer = Writer(root, writer_launcher)
        self.newest = self._learn(self.writer.start)
        self.deliver_all()
        self.server = self.start_server(server_launcher)
        self.wait_for_newest()
        # It answers a moment before it has looked round for the first time, and says so.
        wait_until(lambda: self.server.version()["update_state"] == "following", "the server follows")

    def start_server(self, launcher: Sequence[str] = ()) -> Server:
        server = follow(self.root, launcher=launcher)
        self._health = Health(server)
        return server

    def _learn(self, told: dict[str, Any]) -> str:
        bits = {name: bytes.fromhex(content) for name, content in told["bits"].items()}
        return self.truth.learn(told["position"], bits)

    def train(self, *, is_full: bool = False) -> None:
        told = self.try_to_train(is_full=is_full)
        assert told["position"] == self.newest, told["error"]

    def try_to_train(self, *, is_full: bool = False) -> dict[str, Any]:
        """What the trainer says; the position is an older one when it could not commit."""
        ids = sorted(self.chance.sample(range(ROWS), self.chance.randrange(1, 9)))
        told = self.writer.train(ids, is_full=is_full)
        if told["position"] not in self.truth:
            self.newest = self._learn(told)
        return told

    def restart_writer(self, launcher: Sequence[str] = ()) -> None:
        """A new trainer goes on from what was committed."""
        self.writer = Writer(self.root, launcher)
        self.newest = self._learn(self.writer.start)

    def new_files(self) -> list[Path]:
        """What the trainer has and the server has not, in the order in which it was written."""
        found = [path for path in self.source_files() if not self.target(path).exists()]
        return sorted(found, key=lambda path: [mark in path.name for mark in ORDER].index(True))

    def source_files(self) -> list[Path]:
        """All that the trainer has, but for what is not to be delivered."""
        source = self.root / "source"
        found = [*source.glob("model.ckpt-*"), *(source / names.DELTA_DIRECTORY).glob("incremental_model*")]
        return [p for p in found if any(mark in p.name for mark in ORDER) and p not in self.withheld]

    def newest_manifest(self) -> Path:
        """The trainer's. Not by the times of the files: two commits may fall into one tick of that clock."""
        source = self.root / "source"
        found = [item for item in Scanner(source).scan().manifests if str(item.position) == self.newest]
        return next(path for item in found if (path := commit_paths(source, item)[-1]) not in self.withheld)

    def target(self, path: Path) -> Path:
        return self.root / "run" / path.relative_to(self.root / "source")

    def deliver(self, path: Path, content: bytes | None = None, *, mode: int = 0o644) -> None:
        """As a good copy tool: a temporary name, then the final one, under which it is complete."""
        target = self.target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".tmp-{target.name}")
        temporary.write_bytes(path.read_bytes() if content is None else content)
        temporary.chmod(mode)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        temporary.replace(target)

    def deliver_all(self) -> None:
        for path in self.new_files():
            self.deliver(path)

    def deliver_again(self) -> None:
        """Every file whose copy is not as it should be."""
        for path in self.source_files():
            target = self.target(path)
            if not target.is_file() or target.read_bytes() != path.read_bytes():
                self.deliver(path)

    def ask(self) -> str:
        """One answer, compared with the truth."""
        return self.truth.ask(self.server)

    def wait_for_newest(self) -> None:
        self.truth.wait_for(self.server, self.newest)

    def wait_for_newest_or_reason(self) -> str:
        return self.truth.wait_for_or_reason(self.server, self.newest)

    def require_health(self) -> None:
        self._health.require()

    def kill_server(self) -> None:
        self.server.kill()
        self.server = self.start_server()

    def kill_writer(self) -> None:
        """kill -9 somewhere in a commit, and a new trainer that goes on from what was committed."""
        self.writer.begin([1, 2, 3], is_full=self.chance.random() < 0.3)
        threading.Event().wait(self.chance.random() * 0.03)
        self.writer.kill()
        self.restart_writer()
        self.train()

    def close(self) -> None:
        self.server.kill()
        self.writer.kill()
