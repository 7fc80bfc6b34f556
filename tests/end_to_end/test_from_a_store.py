"""A server that is told addresses: the chain and the exports come through a real object store, and faults of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Position, Scanner, SigningKey
from hotdelta.errors import StoreError
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.departures import Departures
from hotdelta.remote.orders import OrderBox, Verb
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.trees import put_new_tree
from tests.end_to_end.conftest import FLAGS, Deployment
from tests.end_to_end.processes import Bits, Server
from tests.remote.fault_proxy import Fault, FaultProxy, every_request, seeded_faults
from tests.remote.servers import S3Server
from tests.waiting import wait_until

ORDERS_KEY = b"k" * 64


@dataclass
class Remote:
    """What the trainer of the deployment commits is published when a test says so."""

    deployment: Deployment
    seaweedfs: S3Server
    proxy: FaultProxy
    prefix: str
    directory: Path
    server: Server | None = None
    published: set[tuple[Kind, Position]] = field(default_factory=set)

    @property
    def store(self) -> Store:
        return open_store(self.seaweedfs.address(self.prefix))

    def start_server(self) -> Server:
        address = self.seaweedfs.address(self.prefix, endpoint=self.proxy.endpoint)
        key_file = self.directory / "orders.key"
        key_file.write_bytes(ORDERS_KEY)
        flags = ["--mirror-dir", str(self.directory / "mirror"), "--hint-seconds", "0.05"]
        flags += ["--orders-key-file", str(key_file)]
        self.server = Server(address, address, self.directory / "server.log", *FLAGS, *flags)
        return self.server

    def publish(self) -> None:
        run_dir = self.deployment.checkpoint_dir
        with ThreadPoolExecutor(4) as pool:
            departures = Departures(self.store, run_dir, pool=pool)
            for manifest in Scanner(run_dir).scan().manifests:
                if (manifest.kind, manifest.position) not in self.published:
                    departures.send(manifest)
                    departures.tell_head()
                    self.published.add((manifest.kind, manifest.position))

    def order(self, verb: Verb, position: str) -> None:
        node = CommitLog(self.store).read(Kind.DELTA, Position.parse(position))[0].node
        OrderBox(self.store).give(verb, node, given_by="ops", key=SigningKey(ORDERS_KEY))

    def train(self) -> tuple[str, Bits]:
        self.deployment.trainer.train(3, 5)
        return self.deployment.trainer.save()


@pytest.fixture
def remote(deployment: Deployment, seaweedfs: S3Server, tmp_path: Path) -> Iterator[Remote]:
    with FaultProxy(seaweedfs.endpoint) as proxy:
        remote = Remote(deployment, seaweedfs, proxy, f"{tmp_path.name}/ranker", tmp_path)
        try:
            yield remote
        finally:
            if remote.server is not None:
                remote.server.kill()


def test_a_model_is_served_from_a_store_through_outages_faults_and_retention(remote: Remote) -> None:
    server = remote.start_server()
    wait_until(lambda: server.version()["stores"][0]["is_reached"], server.version)
    assert server.http.get("/readyz").status_code == 503, "an empty store is waited for"

    remote.publish()
    put_new_tree(remote.store, "1", remote.deployment.export_dir / "1")
    server.wait_until_ready()
    position, bits = remote.train()
    remote.publish()
    assert server.probe(position) == (position, bits)
    wait_until(lambda: server.version()["last_update"]["first_served_at"], server.version)
    lag = server.version()["last_update"]["lag_ms"]
    assert 0 < lag["fetch"] < lag["committed_to_served"]

    # The store is away: what is served goes on being served, and it says since when.
    remote.seaweedfs.kill()
    later, later_bits = remote.train()
    wait_until(lambda: not server.version()["stores"][1]["is_reached"], server.version)
    assert server.probe(position) == (position, bits)
    told = server.version()["stores"][1]
    assert told["problem"]
    assert told["seconds_since_answer"] > 0
    remote.seaweedfs.start()
    wait_until(lambda: is_published(remote), "the store takes commits again")
    assert server.probe(later) == (later, later_bits)

    # Of every third request something goes wrong.
    remote.proxy.plan = seeded_faults(random.Random(7), share=0.35)
    while remote.proxy.faults.total() < 100:
        position, bits = remote.train()
        remote.publish()
        assert server.probe(position) == (position, bits)
    remote.proxy.plan = None

    # The fleet is told to go back; a server that starts meanwhile begins there.
    later, later_bits = remote.train()
    remote.publish()
    assert server.probe(later) == (later, later_bits)
    remote.order(Verb.PIN, position)
    wait_until(lambda: server.version()["position"] == position, server.version)
    assert server.probe(position) == (position, bits)
    server.kill()
    server = remote.start_server()
    server.wait_until_ready()
    assert server.probe(position) == (position, bits)
    remote.order(Verb.RESUME, later)
    assert server.probe(later) == (later, later_bits)

    # A replica that was away for longer than commits are kept begins with the full.
    server.kill()
    remote.train()
    remote.deployment.trainer.train(1, 2)
    position, bits = remote.deployment.trainer.save_full()
    remote.publish()
    log = CommitLog(remote.store)
    newest_full = max(log.positions_after(Kind.FULL, None))
    for manifest in Scanner(remote.deployment.checkpoint_dir).scan().manifests:
        if manifest.position < newest_full:
            log.remove(manifest)
    server = remote.start_server()
    server.wait_until_ready()
    assert server.probe(position) == (position, bits)
    metrics = server.http.get("/metrics").text
    assert "hotdelta_store_reached" in metrics
    assert "not-a-secret" not in server.said + metrics + server.http.get("/model/version").text

    # Restarted without the store it serves what is here.
    server.kill()
    remote.proxy.plan = every_request(Fault.DROP)
    server = remote.start_server()
    server.wait_until_ready()
    assert server.probe(position) == (position, bits)


def is_published(remote: Remote) -> bool:
    try:
        remote.publish()
    except StoreError:
        return False
    return True
