"""Whatever interrupts publishing, the store never shows half of anything, and the next try finishes it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.chain import Kind
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.publisher import Publisher
from hotdelta.remote.publish.spool import SpoolOptions
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from tests.chain.table_chain import TableChain
from tests.remote.fault_proxy import FaultProxy, seeded_faults
from tests.remote.publish.killed_publish import address_of, publish
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
    stores = tmp_path / "stores"
    stores.mkdir()
    command = [sys.executable, "-m", "tests.remote.publish.killed_publish", str(chain.run_dir), str(stores)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3], timeout=LIMIT_SECONDS)
    killed_at = sorted(stores.iterdir(), key=lambda path: int(path.name))
    commits = set[int]()
    for directory in killed_at:
        store = CountingStore(open_store(address_of(directory)))
        commits.add(require_valid(store, chain))
        before = contents(store)
        store.requests.clear()
        publish(store, chain.run_dir, least_run=2)
        after = contents(store)
        assert {name: after[name] for name in before} == before, "nothing gets other bytes"
        put_again = set(store.names("put_file")) & before.keys()
        assert not {name for name in put_again if name.startswith(layout.DATA)}, "nothing is sent twice"
        require_valid(store, chain)
        for manifest in chain.manifests[-4:]:
            require_whole(store, chain, manifest)
    assert len(killed_at) > 20
    assert len(commits) >= 3, "killed at every stage"


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
