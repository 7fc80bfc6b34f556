"""What arrives from a store is a commit as a trainer makes it, whatever happens on the way, or it is not there."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from hotdelta.chain import Disk, Kind, Manifest, Scanner, Schema, VariableSpec, sweep, verify
from hotdelta.chain.format import names
from hotdelta.errors import CommitError, ManifestError, ObjectMissingError, StoreError
from hotdelta.remote import layout
from hotdelta.remote.arrivals import fetch_commit, fetch_schema, fetch_serving_graph
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.trees import replace_tree
from tests.chain.disks import Crash, CrashingDisk, FailingDisk, PoweredDisk, RecordingDisk
from tests.chain.model_trainer import ModelServer, ModelTrainer
from tests.chain.store.test_crashes import list_leftovers
from tests.chain.table_chain import TableChain
from tests.remote.stored_chain import manifest_path, put_commits
from tests.waiting import LIMIT_SECONDS

pytestmark = [pytest.mark.I3, pytest.mark.I6]

ROWS = {1: 10, 2: 21, 3: 30}
SCHEMA = Schema((VariableSpec("table", (4, 3), "float32", is_table=True),), {}, {})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def trained(tmp_path: Path, store: MemoryStore) -> Path:
    """A full and a delta, in the store too."""
    run_dir = tmp_path / "trained"
    trainer = ModelTrainer(run_dir, PoweredDisk())
    trainer.open()
    trainer.save({1: 10, 2: 20}, Kind.FULL)
    trainer.save({2: 21, 3: 30}, Kind.DELTA)
    trainer.close()
    put_commits(store, run_dir)
    return run_dir


def stored(store: MemoryStore) -> list[tuple[Manifest, bytes]]:
    log = CommitLog(store)
    return [log.read(kind, position) for kind in Kind for position in log.positions_after(kind, None)]


def arrive(
    store: MemoryStore,
    run_dir: Path,
    *,
    pool: Executor,
    disk: Disk | None = None,
    roles: tuple[str, ...] = names.ROLES,
) -> list[bool]:
    return [
        fetch_commit(store, manifest, content, run_dir, pool=pool, disk=disk or PoweredDisk(), roles=roles)
        for manifest, content in stored(store)
    ]


def read_files(run_dir: Path) -> dict[str, bytes]:
    """All that the chain is made of; a state file decides nothing, and may be missing after a failure."""
    others = (names.CLAIM_SUFFIX, names.LOCK_FILE, names.STATE_FILE)
    return {
        str(path.relative_to(run_dir)): path.read_bytes()
        for path in run_dir.rglob("*")
        if path.is_file() and not path.name.endswith(others)
    }


def test_a_chain_arrives_as_it_was_written(
    store: MemoryStore, pool: Executor, trained: Path, tmp_path: Path
) -> None:
    assert arrive(store, tmp_path / "here", pool=pool) == [True, True]
    assert read_files(tmp_path / "here") == read_files(trained)
    for state_file in (Path(names.STATE_FILE), Path(names.DELTA_DIRECTORY, names.STATE_FILE)):
        assert (tmp_path / "here" / state_file).read_bytes() == (trained / state_file).read_bytes()
    assert arrive(store, tmp_path / "here", pool=pool) == [False, False]
    assert read_files(tmp_path / "here") == read_files(trained)


def test_a_manifest_that_another_version_formatted_keeps_its_bytes(
    store: MemoryStore, pool: Executor, trained: Path, tmp_path: Path
) -> None:
    manifest, content = stored(store)[0]
    content = content.replace(b"\n", b"\n\n")
    fetch_commit(store, manifest, content, tmp_path / "here", pool=pool, disk=PoweredDisk())
    assert manifest_path(tmp_path / "here", manifest).read_bytes() == content
    assert Scanner(tmp_path / "here").scan().manifests == (manifest,)


def test_who_only_serves_gets_no_slots_and_who_resumes_gets_them_later(
    store: MemoryStore, pool: Executor, tmp_path: Path
) -> None:
    chain = TableChain(tmp_path / "trained")
    chain.delta([1, 2])
    put_commits(store, chain.run_dir)
    here, sizes = tmp_path / "here", list[int]()
    for manifest, content in stored(store):
        fetch_commit(
            store,
            manifest,
            content,
            here,
            pool=pool,
            disk=PoweredDisk(),
            roles=names.SERVING_ROLES,
            on_bytes=sizes.append,
        )
    assert sum(sizes) == sum(manifest.serving_bytes for manifest in chain.manifests)
    assert not list(here.rglob("*.data-00001-of-00002"))
    for manifest in Scanner(here).scan().manifests:
        verify(here, manifest, roles=names.SERVING_ROLES)
    assert arrive(store, here, pool=pool) == [True, True]
    assert read_files(here) == read_files(chain.run_dir)


def test_a_crash_at_any_call_is_made_good_by_the_next_try(
    store: MemoryStore, trained: Path, tmp_path: Path
) -> None:
    has_crashed, crash_at = True, 0
    with ThreadPoolExecutor(1) as pool:
        while has_crashed:
            crash_at += 1
            here = tmp_path / str(crash_at)
            try:
                arrive(store, here, pool=pool, disk=CrashingDisk(crash_at))
                has_crashed = False
            except Crash:
                pass
            for manifest in Scanner(here).scan().manifests:
                verify(here, manifest)
            arrive(store, here, pool=pool)
            sweep(here, Scanner(here).scan(), PoweredDisk())
            assert read_files(here) == read_files(trained), f"after a crash at call {crash_at}"
    assert crash_at > 25


def test_kill_after_any_call_leaves_a_directory_that_a_trainer_takes(trained: Path, tmp_path: Path) -> None:
    address, killed = f"file://{tmp_path / 'store'}", tmp_path / "killed"
    put_commits(open_store(address), trained)
    command = [sys.executable, "-m", "tests.remote.killed_arrival", address, str(killed)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=LIMIT_SECONDS)
    run_dirs = sorted(killed.iterdir(), key=lambda path: int(path.name))
    server = ModelServer(tmp_path)
    for here in run_dirs:
        server = ModelServer(here)
        assert server.follow().problem is None
        trainer = ModelTrainer(here, PoweredDisk())
        trainer.open()
        trainer.close()
        assert server.rows == trainer.rows
        assert list_leftovers(here) == set(), f"after a kill at call {here.name}"
    assert server.rows == ROWS
    assert len(run_dirs) > 25


def test_what_has_arrived_survives_a_power_loss_at_any_moment(
    store: MemoryStore, trained: Path, tmp_path: Path
) -> None:
    here, disk = tmp_path / "here", RecordingDisk()
    with ThreadPoolExecutor(1) as pool:
        arrive(store, here, pool=pool, disk=disk)
    random_source, found = random.Random(3), tmp_path
    for moment in range(len(disk.snapshots)):
        for attempt in range(4):
            found = tmp_path / f"found-{moment}-{attempt}"
            found.mkdir()
            disk.rebuild(moment, found, here, random_source)
            for manifest in Scanner(found).scan().manifests:
                verify(found, manifest)
    last = ModelServer(found)
    last.follow()
    assert last.rows == ROWS


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_is_told_and_leaves_nothing(
    store: MemoryStore, trained: Path, tmp_path: Path, error_number: int
) -> None:
    failures = 0
    with ThreadPoolExecutor(1) as pool:
        for call in range(1, 40):
            here = tmp_path / str(call)
            error = arrive_and_catch(store, here, pool=pool, disk=FailingDisk(call, error_number))
            failures += error is not None
            assert error is None or error.hint
            assert list_leftovers(here) == set()
            arrive(store, here, pool=pool)
            assert read_files(here) == read_files(trained)
    assert failures > 25


def arrive_and_catch(store: MemoryStore, run_dir: Path, *, pool: Executor, disk: Disk) -> CommitError | None:
    """Only a state file may fail without an error: it decides nothing."""
    try:
        arrive(store, run_dir, pool=pool, disk=disk)
    except CommitError as error:
        return error
    return None


@pytest.mark.parametrize("damage", ["other", "short", "gone"])
def test_what_is_damaged_in_the_store_does_not_appear(
    store: MemoryStore, pool: Executor, trained: Path, tmp_path: Path, damage: str
) -> None:
    manifest, content = stored(store)[0]
    name = layout.data_name(manifest, manifest.files[0].name)
    good = store.get(name, max_bytes=10_000)
    if damage == "gone":
        store.delete(name)
    else:
        store.put(name, good[:-1] if damage == "short" else bytes([good[0] ^ 1]) + good[1:])
    expected = ObjectMissingError if damage == "gone" else StoreError
    with pytest.raises(expected) as caught:
        fetch_commit(store, manifest, content, tmp_path / "here", pool=pool, disk=PoweredDisk())
    assert caught.value.retryable == (damage != "gone")
    assert read_files(tmp_path / "here") == {}
    store.put(name, good)
    assert all(arrive(store, tmp_path / "here", pool=pool))


def test_another_commit_of_the_same_name_is_left_alone(
    store: MemoryStore, pool: Executor, trained: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    trainer = ModelTrainer(here, PoweredDisk())
    trainer.open()
    trainer.save({7: 70}, Kind.FULL)
    trainer.close()
    before = read_files(here)
    with pytest.raises(CommitError, match="another commit"):
        arrive(store, here, pool=pool)
    assert read_files(here) == before


def test_files_of_somebody_else_under_its_names_make_way(
    store: MemoryStore, pool: Executor, trained: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    manifest, _ = stored(store)[0]
    for file in manifest.files:
        (here / file.name).write_bytes(b"of a commit that was never made")
    arrive(store, here, pool=pool)
    assert read_files(here) == read_files(trained)


def test_a_prefix_that_no_trainer_writes_is_refused(
    store: MemoryStore, pool: Executor, trained: Path, tmp_path: Path
) -> None:
    manifest, content = stored(store)[0]
    text = content.decode().replace(manifest.prefix, "schema-1")
    with pytest.raises(ManifestError, match="schema-1"):
        fetch_commit(
            store,
            Manifest.from_json(text.encode()),
            text.encode(),
            tmp_path / "here",
            pool=pool,
            disk=PoweredDisk(),
        )


def test_a_schema_arrives_when_it_is_what_its_digest_says(store: MemoryStore, tmp_path: Path) -> None:
    disk, path = PoweredDisk(), tmp_path / names.DELTA_DIRECTORY / names.schema_name(SCHEMA.digest)
    assert not fetch_schema(store, SCHEMA.digest, tmp_path, disk=disk)
    store.put(f"{layout.SCHEMAS}{path.name}", SCHEMA.to_json() + b" ")
    with pytest.raises(StoreError, match="is not the schema"):
        fetch_schema(store, SCHEMA.digest, tmp_path, disk=disk)
    assert not path.exists()
    store.put(f"{layout.SCHEMAS}{path.name}", SCHEMA.to_json())
    path.write_bytes(b"half a sch")
    assert fetch_schema(store, SCHEMA.digest, tmp_path, disk=disk)
    assert path.read_bytes() == SCHEMA.to_json()
    store.delete(f"{layout.SCHEMAS}{path.name}")
    assert fetch_schema(store, SCHEMA.digest, tmp_path, disk=disk), "it is here"


def test_a_serving_graph_arrives_and_takes_the_place_of_an_older_one(
    store: MemoryStore, pool: Executor, tmp_path: Path
) -> None:
    name = names.serving_graph_name(SCHEMA.digest)
    here = tmp_path / "here"
    assert not fetch_serving_graph(store, SCHEMA.digest, here, pool=pool, disk=PoweredDisk())
    for content in (b"relu", b"gelu", b"gelu"):
        graph = tmp_path / "graph"
        (graph / "assets").mkdir(parents=True, exist_ok=True)
        (graph / "saved_model.pb").write_bytes(content)
        replace_tree(store, name, graph)
        assert fetch_serving_graph(store, SCHEMA.digest, here, pool=pool, disk=PoweredDisk())
        deltas = here / names.DELTA_DIRECTORY
        assert (deltas / name / "saved_model.pb").read_bytes() == content
        assert [path.name for path in deltas.iterdir()] == [name]


def test_a_serving_graph_is_there_after_a_crash_at_any_call_and_one_more_try(
    store: MemoryStore, tmp_path: Path
) -> None:
    name, graph = names.serving_graph_name(SCHEMA.digest), tmp_path / "graph"
    graph.mkdir()
    with ThreadPoolExecutor(1) as pool:
        for crash_at in range(1, 20):
            here = tmp_path / str(crash_at)
            for content in (b"relu", b"gelu"):
                (graph / "saved_model.pb").write_bytes(content)
                replace_tree(store, name, graph)
                try:
                    disk = CrashingDisk(crash_at) if content == b"gelu" else PoweredDisk()
                    fetch_serving_graph(store, SCHEMA.digest, here, pool=pool, disk=disk)
                except Crash:
                    fetch_serving_graph(store, SCHEMA.digest, here, pool=pool, disk=PoweredDisk())
            assert (here / names.DELTA_DIRECTORY / name / "saved_model.pb").read_bytes() == b"gelu"
            sweep(here, Scanner(here).scan(), PoweredDisk())
