"""Whatever interrupts publishing, the store never shows half of anything, and the next try finishes it."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Disk, Kind, Manifest, Scanner
from hotdelta.chain.history.state import find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish import folds
from hotdelta.remote.publish.backlog import positions_in
from hotdelta.remote.publish.publisher import Publisher
from hotdelta.remote.publish.spool import SpoolOptions
from hotdelta.remote.states import fetch_state
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from tests.chain.table_chain import TableChain
from tests.remote.fault_proxy import FaultProxy, seeded_faults
from tests.remote.publish.killed_publish import publish, spool_in, store_in
from tests.remote.servers import S3Server
from tests.remote.test_departures import require_whole, write_graph
from tests.remote.tried_stores import CountingStore
from tests.waiting import LIMIT_SECONDS

# Names that are given once, for one content.
GIVEN_ONCE = ("log/", layout.DATA, layout.CLAIMS, layout.SCHEMAS, layout.TREES_DATA)
WANTED_FAULTS = 110
SEED = 5


def contents(store: Store) -> dict[str, bytes]:
    return {
        entry.name: store.get(entry.name, max_bytes=10**9)
        for entry in store.list_after("")
        if entry.name.startswith(GIVEN_ONCE)
    }


def require_valid(store: Store, chain: TableChain) -> int:
    """Whatever has a name is there whole. Returns how many commits have one."""
    log = CommitLog(store)
    names = {(kind, position) for kind in Kind for position in log.positions_after(kind, None)}
    for manifest in chain.manifests:
        if (manifest.kind, manifest.position) in names:
            require_whole(store, chain, manifest)
    return len(names)


@pytest.mark.I6
def test_kill_between_any_two_requests_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    chain = TableChain(tmp_path / "run")
    write_graph(chain.run_dir, b"graph")
    chain.delta([1])
    chain.close_with_full([2])
    for row in (3, 4, 5):
        chain.delta([row])
    commits = set[int]()
    killed_at = kill_everywhere(chain, tmp_path, fold_above=1000)
    for directory in killed_at:
        commits.add(require_valid(store_in(directory), chain))
        store = publish_again(directory, fold_above=None)
        require_valid(store, chain)
        for manifest in chain.manifests[-4:]:
            require_whole(store, chain, manifest)
    assert len(killed_at) > 20
    assert len(commits) >= 3, "killed at every stage"


@pytest.mark.I6
def test_kill_between_any_two_requests_of_a_folded_publish(tmp_path: Path) -> None:
    """What was chosen is gone on with, byte for byte; and whatever there is leads to the newest state, bit for bit."""
    chain = TableChain(tmp_path / "run")
    write_graph(chain.run_dir, b"graph")
    for row in (1, 2, 3, 4, 5):
        chain.delta([row, row + 1], bias=float(row) if row % 2 else None)
    chosen = Counter[bool]()
    killed_at = kill_everywhere(chain, tmp_path, fold_above=1)
    for directory in killed_at:
        before = Scanner(spool_in(directory) / folds.DIRECTORY).scan().manifests
        published = logged(store_in(directory))
        store = publish_again(directory, fold_above=1)
        log = logged(store)
        require_line(log)
        if before and before[0].node not in {manifest.node for manifest in published}:
            assert before[0] in log
        chosen[bool(before)] += 1
        require_leads_to_newest(store, chain, tmp_path / "fetched" / directory.name)
        assert any(m.position.seq - (m.parent.position.seq if m.parent else 0) > 1 for m in log), (
            "it was folded"
        )
        assert not Scanner(spool_in(directory) / folds.DIRECTORY).scan().manifests
    assert min(chosen[True], chosen[False]) >= 3, "killed at every stage"


def kill_everywhere(chain: TableChain, tmp_path: Path, *, fold_above: int) -> list[Path]:
    places = tmp_path / "killed"
    places.mkdir()
    program = "tests.remote.publish.killed_publish"
    command = [sys.executable, "-m", program, str(chain.run_dir), str(places), str(fold_above)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3], timeout=LIMIT_SECONDS)
    return sorted(places.iterdir(), key=lambda path: int(path.name))


def publish_again(directory: Path, *, fold_above: int | None) -> Store:
    """What was there stays as it is, and of what commits are made of nothing is put a second time."""
    store = CountingStore(store_in(directory))
    before = contents(store)
    store.requests.clear()
    publish(store, spool_in(directory), least_run=2, fold_above=fold_above)
    after = contents(store)
    assert {name: after[name] for name in before} == before, "nothing gets other bytes"
    put_again = set(store.names("put_file")) & before.keys()
    assert not {name for name in put_again if name.startswith(layout.DATA)}, "nothing is sent twice"
    return store


def logged(store: Store) -> list[Manifest]:
    """The deltas in the log."""
    log = CommitLog(store)
    return [log.read(Kind.DELTA, position)[0] for position in log.positions_after(Kind.DELTA, None)]


def require_line(deltas: Sequence[Manifest]) -> None:
    for previous, manifest in itertools.pairwise(deltas):
        assert manifest.parent == previous.node, "each delta follows the one before it"


def require_leads_to_newest(store: Store, chain: TableChain, run_dir: Path) -> None:
    """As a trainer on another machine goes on from there."""
    fetch_state(store, run_dir, there=positions_in(CommitLog(store)), disk=Disk())
    state = find_state(run_dir)
    assert state is not None
    assert state.node == chain.manifests[-1].node
    reader = StateReader(state)
    for key, value in chain.values.items():
        np.testing.assert_array_equal(reader.value(key), value, strict=True)


@pytest.mark.I6
def test_a_network_that_fails_at_random_loses_nothing(seaweedfs: S3Server, tmp_path: Path) -> None:
    chain = TableChain(tmp_path / "run")
    prefix = seaweedfs.new_address().partition("?")[0].removeprefix("s3://tests/")
    with FaultProxy(seaweedfs.endpoint) as proxy:
        store = open_store(seaweedfs.address(prefix, endpoint=proxy.endpoint))
        options = SpoolOptions(publish_timeout_secs=150)
        publisher = Publisher(store, chain.run_dir, options=options, keep_fulls=3)
        proxy.plan = seeded_faults(random.Random(SEED), share=0.4)
        publisher.claim_run(1, may_begin_alone=True)
        publisher.begin(chain.manifests, chain.manifests[-1].node)
        while sum(proxy.faults.values()) < WANTED_FAULTS:
            last = chain.close_with_full([1]) if len(chain.manifests) % 8 == 7 else chain.delta([2, 3])
            for manifest in chain.manifests[-2:] if last.kind is Kind.FULL else [last]:
                publisher.committed(manifest)
            publisher.wait()
            assert publisher.failure is None
        proxy.plan = None
        publisher.close()
    assert sum(proxy.faults.values()) >= WANTED_FAULTS
    assert len(proxy.faults) >= 6, "faults of many kinds"
    direct = open_store(seaweedfs.address(prefix))
    require_valid(direct, chain)
    deltas = list(CommitLog(direct).positions_after(Kind.DELTA, None))
    wanted = [m.position for m in chain.manifests if m.kind is Kind.DELTA and m.position >= deltas[0]]
    assert deltas == wanted, "all that retention left"
    assert publisher.figures.commits["delta"] == sum(m.kind is Kind.DELTA for m in chain.manifests)
