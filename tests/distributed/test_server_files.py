"""Parameter servers write the rows that they hold: who wrote which file, and what a fault in the middle leaves."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.bundle.slice_key import row_slices
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest, Tracking
from hotdelta.chain.history.verification import directory_of
from tests.chaos.seccomp import is_supported
from tests.chaos.system_calls import Call, SystemCalls
from tests.distributed.chains import assert_chain_holds, assert_served, committed, serving
from tests.distributed.cluster import Cluster, Reporter
from tests.distributed.cluster_program import server_file_mode
from tests.distributed.coordinator_program import COORDINATOR_FILE_MODE
from tests.waiting import wait_until

pytestmark = pytest.mark.I6

TABLE, SLOT = "table", "slots/accumulator/table"
stops_calls = pytest.mark.skipif(not is_supported(), reason="only Linux lets us stop system calls")


def pieces(run_dir: Path, manifest: Manifest, key: str) -> list[tuple[int, int, str]]:
    """The rows of a tensor from the first to the last: how many, the mode of the file that has them, its role."""
    directory = directory_of(run_dir, manifest.kind)
    roles = {file.name: file.role for file in manifest.files}
    found = []
    with BundleReader(directory, manifest.prefix) as reader:
        name = key if manifest.kind is Kind.FULL else key + names.ROWS_SUFFIX
        entry = reader.entries[name]
        for part in row_slices(name, entry) if entry.is_sliced else [name]:
            held = reader.entries[part]
            file = names.data_name(manifest.prefix, held.shard, reader.num_shards)
            found.append((held.shape[0], (directory / file).stat().st_mode & 0o777, roles[file]))
    return found


def leftovers(run_dir: Path) -> list[str]:
    return [path.name for path in run_dir.rglob(f"{names.TEMPORARY_PREFIX}*")]


@pytest.mark.parametrize("tracking", Tracking)
def test_each_server_writes_the_rows_that_it_holds(
    tracking: Tracking, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start_servers(ps=2, workers=2)
    coordinator = cluster.coordinate(tmp_path, tracking=tracking)
    coordinator.wait_for("step", 8)
    assert_chain_holds(tmp_path, coordinator.stop())
    found = committed(tmp_path)
    assert {manifest.kind for manifest in found} == set(Kind)
    servers = [server_file_mode(0), server_file_mode(1)]
    for manifest in found:
        for key, role in ((TABLE, names.ROLE_SERVING), (SLOT, names.ROLE_TRAINING)):
            rows = pieces(tmp_path, manifest, key)
            if manifest.kind is Kind.FULL:
                assert len(manifest.files) == 7, "an index, and two data files of each process"
                assert [count for count, _, _ in rows] == [102, 101]
            # Of a table that trains on while it is read, the rows may have changed and the slots not yet.
            if any(count for count, _, _ in rows):
                # TensorFlow may put the shards of a slot on other servers than those of its table.
                order = servers if key == TABLE else servers[::-1]
                assert [mode for _, mode, _ in rows] in (order, order[:1], order[1:])
                assert {found_role for _, _, found_role in rows} == {role}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("shards", [1, 4])
def test_server_may_hold_several_shards_of_a_table_or_none(
    shards: int, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start_servers(ps=2, workers=1)
    coordinator = cluster.coordinate(tmp_path, shards=shards)
    coordinator.wait_for("step", 8)
    assert_chain_holds(tmp_path, coordinator.stop())
    full = next(found for found in committed(tmp_path) if found.kind is Kind.FULL)
    modes = [mode for _, mode, _ in pieces(tmp_path, full, TABLE)]
    assert modes == [server_file_mode(number % 2) for number in range(shards)]


def test_server_that_does_not_see_the_directory_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(ps=2, workers=1)
    unseen = Path("/proc/self/cwd/run")
    coordinator = cluster.coordinate(unseen, working_dir=tmp_path)
    coordinator.wait_for_end()
    assert "ConfigurationError: parameter server /job:ps/replica:0/task:0" in coordinator.log()
    assert 'rows_written_by="coordinator"' in coordinator.log()
    assert committed(tmp_path / "run") == []

    cluster.start_servers(ps=2, workers=1)
    coordinator = cluster.coordinate(unseen, working_dir=tmp_path, rows_written_by="coordinator")
    coordinator.wait_for("step", 4)
    assert_chain_holds(tmp_path / "run", coordinator.stop())
    for manifest in committed(tmp_path / "run"):
        ((_, mode, _),) = pieces(tmp_path / "run", manifest, TABLE)
        assert mode == COORDINATOR_FILE_MODE


def test_rows_that_a_server_could_not_write_are_in_the_next_delta(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(ps=2, workers=1)
    coordinator = cluster.coordinate(tmp_path)
    coordinator.wait_for("step", 4)
    reason = "task:1/device:CPU:0 could not write its rows"

    def has_failed() -> bool:
        lines = coordinator.log().splitlines()
        return any("delta not committed" in line and reason in line for line in lines)

    with no_room_for_files(cluster.pid("ps", 1)):
        wait_until(has_failed, "a save that fails")
    saved = len(committed(tmp_path))
    wait_until(lambda: len(committed(tmp_path)) > saved + 2, "saves that succeed")
    assert_chain_holds(tmp_path, coordinator.stop())
    assert leftovers(tmp_path) == []


@contextmanager
def no_room_for_files(pid: int) -> Iterator[None]:
    """Every write of a process to a file fails."""
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def test_chain_that_was_removed_is_begun_anew_by_the_servers(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(ps=2, workers=2)
    coordinator = cluster.coordinate(tmp_path / "run")
    coordinator.wait_for("step", 4)
    (tmp_path / "run").rename(tmp_path / "gone")
    # Not longer: rows that the new full lacks must not be written again before the end.
    wait_until(lambda: len(committed(tmp_path / "run")) > 0, "a new chain")
    assert_chain_holds(tmp_path / "run", coordinator.stop())


def train_until_server_writes(
    cluster: Cluster, root: Path, server: int, act: Callable[[Reporter, Call], object]
) -> Reporter:
    """Until `act` was called: the server has written the rows of a save, and is about to give their files names."""
    with SystemCalls(root / "calls", within=root / "run") as calls:
        cluster.start_servers(ps=2, workers=2, calls={server: root / "calls"})
        coordinator = cluster.coordinate(root / "run")
        coordinator.wait_for("step", 2)

        def act_once(call: Call) -> int:
            act(coordinator, call)
            return 0

        calls.arm(1, act_once)
        wait_until(lambda: calls.acted_on is not None, "a save")
    return coordinator


@stops_calls
@pytest.mark.parametrize("ps", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_server_killed_in_the_middle_of_a_save(ps: int, cluster: Cluster, tmp_path: Path) -> None:
    """With another number of servers in soak: test_killed_tasks_lose_nothing_that_was_committed resumes so, too."""
    coordinator = train_until_server_writes(cluster, tmp_path, 1, lambda _, call: call.kill())
    coordinator.wait_for_end()
    # Whether the save or training is told first: the coordinator ends when it knows what became of its saves.
    assert "not committed" in coordinator.log()
    assert_resumes(cluster, tmp_path / "run", tmp_path / "export", ps=ps)


@stops_calls
def test_coordinator_killed_in_the_middle_of_a_save(cluster: Cluster, tmp_path: Path) -> None:
    train_until_server_writes(cluster, tmp_path, 0, lambda coordinator, _: coordinator.kill())
    # Otherwise the server goes on to rename its files, and who lists a directory meanwhile may miss both names.
    cluster.kill_all()
    assert leftovers(tmp_path / "run") != []
    assert_resumes(cluster, tmp_path / "run", tmp_path / "export", ps=2)


def assert_resumes(cluster: Cluster, run_dir: Path, export_dir: Path, *, ps: int) -> None:
    """From the newest commit, exactly, with nothing left of what was not committed."""
    newest = committed(run_dir)[-1]
    cluster.start_servers(ps=ps, workers=1)
    coordinator = cluster.coordinate(run_dir)
    assert coordinator.wait_for("resumed") == newest.step
    with serving(run_dir, export_dir) as loader:
        coordinator.wait_for("step", 3)
        trained = coordinator.stop()
        assert_chain_holds(run_dir, trained)
        assert_served(loader, run_dir, trained)
    assert leftovers(run_dir) == []
