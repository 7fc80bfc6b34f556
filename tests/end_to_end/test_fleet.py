"""Eight servers on one store, under kills and outages: all converge, and what the canary refuses goes no further."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.end_to_end.probes import PROBES
from tests.end_to_end.processes import Bits, Server, Trainer, bits_of, question
from tests.remote.servers import S3Server
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.I1, pytest.mark.I2, pytest.mark.I6]

BEHIND, BESIDE = 3, 4
STREAM_SECONDS = 60.0
LARGEST = 100.0


@dataclass
class Replica:
    """One server, which may be killed and started again, and what it has answered."""

    flags: tuple[str, ...]
    exports: str
    address: str
    directory: Path
    server: Server | None = None
    answers: list[tuple[str, Bits]] = field(default_factory=list)

    @property
    def running(self) -> Server:
        assert self.server is not None
        return self.server

    def start(self) -> None:
        port = ("--port", self.running.url.rpartition(":")[2]) if self.server is not None else ()
        own = ("--mirror-dir", str(self.directory), "--hint-seconds", "0.1", *self.flags, *port)
        self.directory.mkdir(exist_ok=True)
        self.server = Server(self.exports, self.address, self.directory / "log", *own)

    def restart(self) -> None:
        self.running.kill()
        self.start()

    def ask(self) -> None:
        """What cannot be asked is being restarted, or not ready yet."""
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.post(
                f"{self.running.url}/predict", json=question(PROBES), timeout=10, trust_env=False
            )
            if answer.status_code == httpx.codes.OK:
                self.answers.append((answer.json()["version"]["position"], bits_of(answer)))


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    replicas: list[Replica] = []
    yield replicas
    for replica in replicas:
        if replica.server is not None:
            replica.server.kill()


@pytest.fixture
def trainer(tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    monkeypatch.setenv("HOTDELTA_SPOOL", str(tmp_path / "spool"))
    trainer = Trainer(seaweedfs.address(tmp_path.name), tmp_path / "trainer.log")
    yield trainer
    trainer.kill()


def test_all_converge_and_what_the_canary_refuses_goes_no_further(
    trainer: Trainer, replicas: list[Replica], seaweedfs: S3Server, tmp_path: Path
) -> None:
    address = seaweedfs.address(tmp_path.name)
    # From here on it is what its own start says.
    truth = {trainer.start["position"]: trainer.start["bits"]}
    exports = seaweedfs.address(f"{tmp_path.name}-exports")
    export(address, exports)
    start_all(replicas, exports, address, tmp_path)
    is_over = threading.Event()
    askers = [threading.Thread(target=keep_asking, args=(replica, is_over)) for replica in replicas]
    for asker in askers:
        asker.start()
    spoiled = stream(trainer, truth, replicas, seaweedfs)
    newest = max(truth, key=lambda text: [int(part) for part in text.split(".")])
    for replica in replicas:
        wait_until(partial(is_at, replica, newest), f"{newest} of {replica.directory}")
    in_order = fleet_of(replicas)
    is_over.set()
    for asker in askers:
        asker.join()
    wrong = [
        (replica.directory.name, position)
        for replica in replicas
        for position, bits in replica.answers
        if truth[position] != bits
    ]
    assert wrong == []
    assert min(len(replica.answers) for replica in replicas) > 100
    canary, *behind = replicas[: BEHIND + 1]
    served = [{position for position, _ in replica.answers} for replica in (canary, *behind)]
    assert all(spoiled not in positions for positions in served)
    assert any(spoiled in {position for position, _ in replica.answers} for replica in replicas[BEHIND + 1 :])
    assert len({server["status"]["digest"] for server in in_order["servers"]}) == 1


def export(address: str, exports: str) -> None:
    command = [sys.executable, "-m", "exporter.cli", "--save-incr-model", "--checkpoint-dir", address]
    subprocess.run([*command, "--export-dir", exports], check=True, timeout=LIMIT_SECONDS)


def start_all(replicas: list[Replica], exports: str, address: str, directory: Path) -> None:
    canary = Replica(("--sanity", f"max_abs={LARGEST}"), exports, address, directory / "canary")
    replicas.append(canary)
    canary.start()
    ahead = ("--behind-server", canary.running.url)
    replicas += [Replica(ahead, exports, address, directory / f"behind-{number}") for number in range(BEHIND)]
    replicas += [Replica((), exports, address, directory / f"beside-{number}") for number in range(BESIDE)]
    for replica in replicas[1:]:
        replica.start()
    for replica in replicas:
        replica.running.wait_until_ready()


def stream(trainer: Trainer, truth: dict[str, Bits], replicas: list[Replica], store: S3Server) -> str:
    """A delta every half second, a server killed now and then, the store away for a while. The spoiled position."""
    chance = random.Random(1)
    started, spoiled, next_kill, is_away = time.monotonic(), "", 5.0, False
    while (now := time.monotonic() - started) < STREAM_SECONDS:
        trainer.train(chance.choice([3, 4, 49, 0]), chance.choice([5, 6, 19, 0]))
        if now > STREAM_SECONDS / 2 and not spoiled:
            trainer.spoil(7, 10 * LARGEST)
            spoiled, truth_of_it = trainer.save()
            truth[spoiled] = truth_of_it
            wait_until(partial(serves, replicas[-1], spoiled), f"{spoiled} is served by who does not mind")
            trainer.spoil(7, 0.5)
            position, bits = trainer.save_full()
        else:
            position, bits = trainer.save()
        truth[position] = bits
        if now > next_kill:
            next_kill += 7
            chance.choice(replicas).restart()
        if (STREAM_SECONDS / 5 < now < STREAM_SECONDS / 3) is not is_away:
            is_away = not is_away
            store.kill() if is_away else store.start()
        threading.Event().wait(0.5)
    if is_away:
        store.start()
    return spoiled


def keep_asking(replica: Replica, is_over: threading.Event) -> None:
    while not is_over.wait(0.1):
        replica.ask()


def serves(replica: Replica, position: str) -> bool:
    return any(found == position for found, _ in replica.answers[-20:])


def is_at(replica: Replica, position: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(f"{replica.running.url}/model/version", timeout=10, trust_env=False)
        return bool(answer.json()["position"] == position)
    return False


def fleet_of(replicas: list[Replica]) -> Any:
    """What `hotdelta fleet` says when all digests are counted."""
    urls = [replica.running.url for replica in replicas]
    found: list[Any] = []

    def is_counted() -> bool:
        command = [sys.executable, "-m", "hotdelta", "fleet", "--json", *urls]
        said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        found.append(json.loads(said.stdout))
        return said.returncode == 0 and all(one["status"]["digest"] for one in found[-1]["servers"])

    wait_until(is_counted, lambda: f"one state everywhere: {found[-1]}")
    return found[-1]
