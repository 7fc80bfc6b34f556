"""Two trainers with a part of the model each, one process that merges them through a shared store, and a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from hotdelta.chain import Disk, Kind
from hotdelta.chain.history.state import find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.backlog import positions_in
from hotdelta.remote.states import fetch_state
from hotdelta.remote.stores.opening import open_store
from tests.end_to_end.conftest import FLAGS
from tests.end_to_end.processes import Bits, Program, Server, Trainer
from tests.remote.servers import S3Server


class Merger(Program):
    """`merging_program`, told by us when to merge."""

    def __init__(self, *addresses: str, errors: Path) -> None:
        super().__init__("tests.end_to_end.merging_program", *addresses, errors=errors)
        self.start = json.loads(self._read_line())

    def merge(self, *positions: str) -> tuple[str, Bits]:
        self._tell({"do": "merge", "from": positions})
        answer = json.loads(self._read_line())
        return answer["position"], answer["bits"]

    def export(self) -> None:
        self._tell({"do": "export"})
        self._read_line()

    def _tell(self, command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()


def test_a_server_serves_what_two_trainers_have_trained(
    seaweedfs: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each merge is a delta; a merger that was killed goes on from the store, and the server never notices."""
    monkeypatch.setenv("HOTDELTA_SPOOL", str(tmp_path / "spools"))
    names = ("merged", "exports", "trainer-0", "trainer-1")
    addresses = [seaweedfs.address(f"{tmp_path.name}/{name}") for name in names]
    merged, exports, *sources = addresses
    with ExitStack() as running:
        errors = tmp_path / "programs.log"
        with ThreadPoolExecutor(3) as pool:
            starting = pool.submit(Merger, *addresses, errors=errors)
            trainers = list(pool.map(lambda source: Trainer(source, errors), sources))
            merger = starting.result()
        for program in (*trainers, merger):
            running.callback(program.kill)
        trainers[0].train(3, 5, steps=3)
        trainers[1].train(4, 6, steps=2)
        first, second = (trainer.save() for trainer in trainers)
        position, bits = merger.merge(first[0], second[0])
        assert bits not in (first[1], second[1]), "neither of them has all of it"
        merger.export()
        flags = ["--mirror-dir", str(tmp_path / "mirror"), "--hint-seconds", "0.05"]
        server = Server(exports, merged, tmp_path / "server.log", *FLAGS, *flags)
        running.callback(server.kill)
        server.wait_until_ready()
        assert server.probe(position) == (position, bits)

        trainers[1].train(3, 5)
        later = trainers[1].save()[0]
        merger.kill()
        again = Merger(*addresses, errors=errors)
        running.callback(again.kill)
        assert again.start["resumed"]
        assert again.start["bits"] == bits
        position, changed = again.merge(first[0], later)
        assert changed != bits
        assert server.probe(position) == (position, changed)
    states = [values(address, tmp_path / "read" / str(at)) for at, address in enumerate((merged, *sources))]
    for key, source in (("users/embeddings", 1), ("score/kernel", 1), ("items/embeddings", 2)):
        assert states[0](key) == states[source](key), key
        assert states[0](key) != states[3 - source](key), key
    log = CommitLog(open_store(merged))
    assert len(list(log.positions_after(Kind.DELTA, None))) >= 2, "merges are deltas"


def values(address: str, directory: Path) -> Callable[[str], bytes]:
    store = open_store(address)
    fetch_state(store, directory, there=positions_in(CommitLog(store)), disk=Disk())
    state = find_state(directory)
    assert state is not None
    reader = StateReader(state)
    return lambda key: reader.value(key).tobytes()
