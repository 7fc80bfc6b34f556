"""`hotdelta copy A B`: between any two places a chain arrives as it was, and what was interrupted goes on."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Position, Scanner, TrainerLock, verify
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.errors import StoreError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.copying import copy_chain, look_at
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.stores.opening import open_store
from tests.chaos.seeds import seeded
from tests.cli.conftest import Run
from tests.golden.golden_chains import golden_chain
from tests.remote.fault_proxy import Fault, FaultProxy, every_request, seeded_faults
from tests.remote.servers import S3Server
from tests.remote.tried_stores import CountingStore, StumblingStore

ALL = 7  # commits of the chain `forked`


@pytest.fixture(params=["directory", "seaweedfs", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "seaweedfs":
        address: str = request.getfixturevalue("s3_address")
        return address
    return f"file://{tmp_path}/store" if request.param == "file" else str(tmp_path / "copied")


def assert_same_chain(one: Path, other: Path) -> None:
    """Every file that belongs to a chain, byte for byte."""
    for directory in (Path(), Path(names.DELTA_DIRECTORY)):
        here = {
            path.name
            for path in (one / directory).iterdir()
            if path.is_file() and path.name not in (names.LOCK_FILE, names.STATE_FILE)
            if not path.name.startswith(names.CLAIM_PREFIX)
        }
        _, differing, missing = filecmp.cmpfiles(one / directory, other / directory, here, shallow=False)
        assert (differing, missing) == ([], [])
    assert Scanner(one).scan().manifests == Scanner(other).scan().manifests


@pytest.mark.parametrize("name", ["forked", "keyed", "tf1_servers"])
def test_there_and_back_it_is_the_same_chain(run: Run, tmp_path: Path, place: str, name: str) -> None:
    chain = golden_chain(name).copy_to(tmp_path)
    done = run("copy", chain, place)
    assert (done.code, done.err) == (0, "")
    assert run("verify", place).code == 0
    assert run("copy", place, tmp_path / "back").code == 0
    assert_same_chain(chain, tmp_path / "back")
    graphs = [path.name for path in (chain / names.DELTA_DIRECTORY).glob("serving_graph-*")]
    for graph in graphs:
        compared = filecmp.dircmp(
            chain / names.DELTA_DIRECTORY / graph, tmp_path / "back" / names.DELTA_DIRECTORY / graph
        )
        assert [*compared.diff_files, *compared.left_only, *compared.right_only] == []


def test_from_store_to_store(run: Run, forked: Path, s3_address: str, tmp_path: Path) -> None:
    other = f"file://{tmp_path}/other"
    assert run("copy", forked, s3_address).code == 0
    assert run("copy", s3_address, other).code == 0
    one, two = open_store(s3_address), open_store(other)
    # Where a folder's name begins that of another one, SeaweedFS lists folder by folder.
    entries = sorted(one.list_after(""))
    assert sorted(two.list_after("")) == entries
    assert all(two.get(e.name, max_bytes=10**6) == one.get(e.name, max_bytes=10**6) for e in entries)
    assert CommitLog(two).head() == Head(full=Position(1, 1), delta=Position(2, 2))


def test_what_is_there_is_not_copied_again(run: Run, forked: Path, place: str) -> None:
    first, again = (run("copy", forked, place, "--json").document for _ in range(2))
    assert (len(first["copied"]), len(first["there"])) == (ALL, 0)
    assert (len(again["copied"]), len(again["there"]), again["bytes"]) == (0, ALL, 0)
    assert first["newest"] == again["newest"] == "2.2"


@pytest.mark.parametrize("is_done", [False, True])
def test_to_a_store_it_goes_on_after_any_request_that_fails(forked: Path, is_done: bool) -> None:
    found, counting = look_at(forked), CountingStore(MemoryStore())
    copy_chain(forked, found, counting)
    failed = 0
    for fails_at in range(1, len(counting.requests) + 1):
        memory = MemoryStore()
        try:
            copy_chain(forked, found, StumblingStore(memory, fails_at=fails_at, is_done=is_done))
        except StoreError:
            failed += 1
        assert_readable(memory)
        done = copy_chain(forked, found, memory)
        assert len(done.copied) + len(done.there) == ALL
        assert look_at(memory) == found
    # That nothing has a name is an answer that does not get lost.
    assert failed >= len(counting.requests) * 0.8


def test_from_a_store_it_goes_on_after_a_request_that_fails(forked: Path, tmp_path: Path) -> None:
    found, memory = look_at(forked), MemoryStore()
    copy_chain(forked, found, memory)
    counting = CountingStore(memory)
    copy_chain(counting, found, tmp_path / "whole")
    for fails_at in range(1, len(counting.requests) + 1, 5):
        target = tmp_path / f"back-{fails_at}"
        with pytest.raises(StoreError, match="the network is away"):
            copy_chain(StumblingStore(memory, fails_at=fails_at), found, target)
        assert all(verify_listed(target))
        copy_chain(memory, found, target)
        assert_same_chain(forked, target)


def verify_listed(run_dir: Path) -> Iterator[bool]:
    for manifest in Scanner(run_dir).scan().manifests:
        verify(run_dir, manifest)
        yield True


def assert_readable(store: Store) -> None:
    """Whatever has a name in the log has all its files."""
    log = CommitLog(store)
    for kind in Kind:
        for position in log.positions_after(kind, None):
            manifest, _ = log.read(kind, position)
            there = {entry.name: entry.bytes for entry in store.list_after(layout.data_prefix(manifest.node))}
            assert all(there[layout.data_name(manifest, file.name)] == file.bytes for file in manifest.files)


def test_behind_a_bad_network_it_arrives(forked: Path, seaweedfs: S3Server, tmp_path: Path) -> None:
    found, address = look_at(forked), seaweedfs.new_address()
    with FaultProxy(seaweedfs.endpoint) as proxy:
        proxy.plan = seeded_faults(seeded("copy"), share=0.4)
        store = open_store(address.replace(seaweedfs.endpoint, proxy.endpoint))
        for target in (store, tmp_path / "back"):
            source: Path | Store = forked if target is store else store
            for _ in range(50):
                try:
                    copy_chain(source, found, target)
                except StoreError as error:
                    if not error.retryable:
                        raise
                else:
                    break
            assert look_at(open_store(address) if target is store else tmp_path / "back") == found
        assert sum(proxy.faults.values()) >= 10
        proxy.plan = every_request(Fault.DROP)
        with pytest.raises(StoreError):
            copy_chain(forked, found, store)
    assert_same_chain(forked, tmp_path / "back")


def test_what_the_source_lost_is_deleted_when_asked(run: Run, forked: Path, place: str) -> None:
    run("copy", forked, place)
    for path in (forked / names.DELTA_DIRECTORY).glob("incremental_model.ckpt-*-1.[45]*"):
        path.unlink()
    left = [str(m.position) for m in look_at(forked).manifests]
    document = run("copy", forked, place, "--json").document
    assert document["deleted"] == []
    document = run("copy", forked, place, "--delete", "--json").document
    deleted = {item["position"] for item in document["deleted"]}
    assert len(deleted) + len(left) == ALL
    assert [item["position"] for item in document["there"]] == left
    assert run("verify", place).code == 0


def test_another_chain_is_not_mixed_in(run: Run, forked: Path, place: str, tmp_path: Path) -> None:
    other = golden_chain("keyed").copy_to(tmp_path / "other")
    run("copy", forked, place)
    done = run("copy", other, place)
    assert done.code == 1
    assert "--delete" in done.err
    assert run("copy", other, place, "--delete").code == 0
    assert run("verify", place).code == 0


def test_while_a_trainer_writes_to_the_target_it_is_refused(run: Run, forked: Path, tmp_path: Path) -> None:
    with TrainerLock(tmp_path / "target"):
        done = run("copy", forked, tmp_path / "target")
    assert done.code == 1
    assert "trainer" in done.err


def test_a_damaged_file_is_not_copied(run: Run, forked: Path, place: str) -> None:
    data = next((forked / names.DELTA_DIRECTORY).glob("incremental_model.ckpt-4-2.2.data-00000*"))
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(bytes(content))
    done = run("copy", forked, place)
    assert done.code == 1
    assert data.name in done.err
    assert "2.2" not in run("log", place, "--json").out


def test_with_a_key_only_what_it_signed_is_copied(
    run: Run, forked: Path, place: str, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key_file))
    done = run("copy", forked, place)
    assert done.code == 2
    assert "can be copied" in done.err


def test_an_empty_source_is_a_wrong_argument(run: Run, tmp_path: Path) -> None:
    assert run("copy", tmp_path / "none", "memory://test-copy").code == 2
    assert run("copy", "memory://test-copy-none", tmp_path / "x").code == 2
    assert not (tmp_path / "x").exists()
