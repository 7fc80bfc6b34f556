from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.chain import Disk, Kind, Scanner, TrainerLock, claim_run, directory_of
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE, SigningKey
from hotdelta.errors import ChainError, CommitError, DirectoryBusyError
from tests.chain.disks import Crash, CrashingDisk
from tests.chain.manifests import delta, full

HOLD = """
import sys, time
from pathlib import Path
from hotdelta.chain import TrainerLock
lock = TrainerLock(Path(sys.argv[1]))
lock.acquire()
print("locked", flush=True)
if sys.argv[2] == "fork":
    import os
    child = os.fork()
    # One write: both processes write to one pipe, and an unbuffered print makes two of a line.
    os.write(1, f"{child or 'child'}\\n".encode())
sys.stdin.read()
"""


def hold(run_dir: Path, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_second_trainer_is_told_who_has_the_directory(tmp_path: Path) -> None:
    with TrainerLock(tmp_path), pytest.raises(DirectoryBusyError, match=f'"pid": {os.getpid()}') as caught:
        TrainerLock(tmp_path).acquire()
    assert caught.value.directory == tmp_path
    with TrainerLock(tmp_path):
        text = (directory_of(tmp_path, Kind.DELTA) / names.LOCK_FILE).read_text()
        assert set(json.loads(text)) == {"host", "pid", "since"}


def test_kill_releases_the_lock(tmp_path: Path) -> None:
    with hold(tmp_path, "alone") as process:
        with pytest.raises(DirectoryBusyError, match=f'"pid": {process.pid}'):
            TrainerLock(tmp_path).acquire()
        process.kill()
        process.wait()
        with TrainerLock(tmp_path):
            pass


def test_forked_worker_that_outlives_the_trainer_does_not_hold_the_lock(tmp_path: Path) -> None:
    with hold(tmp_path, "fork") as process:
        assert process.stdout is not None
        lines = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        worker = int(next(line for line in lines if line != "child"))
        with pytest.raises(DirectoryBusyError):
            TrainerLock(tmp_path).acquire()
        process.kill()
        process.wait()
        try:
            with TrainerLock(tmp_path):
                pass
        finally:
            os.kill(worker, signal.SIGKILL)


def test_release_does_not_wait_for_a_process_that_is_being_started(tmp_path: Path) -> None:
    """Between fork and exec it has copies of all descriptors of the trainer."""
    lock = TrainerLock(tmp_path)
    lock.acquire()
    assert lock._fd is not None
    copy = os.dup(lock._fd)
    lock.release()
    with TrainerLock(tmp_path):
        pass
    os.close(copy)


def test_a_lock_that_cannot_be_unlocked_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    lock = TrainerLock(tmp_path)
    lock.acquire()
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", fail)
        lock.release()
    with TrainerLock(tmp_path):
        pass


def test_lock_can_be_taken_again_after_the_directory_was_removed(tmp_path: Path) -> None:
    lock = TrainerLock(tmp_path / "run")
    lock.acquire()
    lock.acquire()
    shutil.rmtree(tmp_path / "run")
    lock.release()
    lock.release()
    lock.acquire()
    with pytest.raises(DirectoryBusyError):
        TrainerLock(tmp_path / "run").acquire()
    lock.release()


def test_directory_that_cannot_be_made_is_a_commit_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommitError):
        TrainerLock(tmp_path / "file").acquire()


def test_run_numbers_are_above_all_manifests_and_never_given_twice(tmp_path: Path) -> None:
    deltas = directory_of(tmp_path, Kind.DELTA)
    deltas.mkdir()
    assert claim_run(tmp_path, [], Disk()) == 1
    assert claim_run(tmp_path, [], Disk()) == 2
    assert claim_run(tmp_path, [full("7.1"), delta("7.2", "7.1")], Disk()) == 8
    assert claim_run(tmp_path, [], Disk()) == 9
    assert [path.name for path in deltas.iterdir()] == [names.claim_name(9)]


def test_run_number_is_not_given_again_after_a_crash_at_any_call(tmp_path: Path) -> None:
    for crash_at in range(1, 4):
        run_dir = tmp_path / str(crash_at)
        directory_of(run_dir, Kind.DELTA).mkdir(parents=True)
        first = claim_run(run_dir, [], Disk())
        with pytest.raises(Crash):
            claim_run(run_dir, [], CrashingDisk(crash_at))
        assert claim_run(run_dir, Scanner(run_dir).scan().manifests, Disk()) > first


@pytest.mark.parametrize("claimed", [2**31 - 2, 2**31 - 1, 9_999_999_999])
def test_a_claim_that_would_use_up_the_run_numbers_is_refused_by_name(tmp_path: Path, claimed: int) -> None:
    deltas = directory_of(tmp_path, Kind.DELTA)
    deltas.mkdir()
    (deltas / names.claim_name(claimed)).touch()
    with pytest.raises(ChainError, match=rf"run-{claimed}\.claim has the run number .* remove the file"):
        claim_run(tmp_path, [full("7.1")], Disk())
    (deltas / names.claim_name(claimed)).unlink()
    assert claim_run(tmp_path, [full("7.1")], Disk()) == 8


def test_a_manifest_that_would_use_up_the_run_numbers_is_refused_by_name(tmp_path: Path) -> None:
    directory_of(tmp_path, Kind.DELTA).mkdir()
    last = full(f"{2**31 - 1}.1")
    with pytest.raises(
        ChainError, match=rf"{last.prefix}\.manifest\.json has the run number .* remove the file"
    ):
        claim_run(tmp_path, [full("7.1"), last], Disk())


def test_what_a_key_did_not_sign_does_not_count_for_the_run_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory_of(tmp_path, Kind.DELTA).mkdir()
    key_file = tmp_path / "key"
    key_file.write_text("k" * 32)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key_file))
    ours = SigningKey.read(key_file).sign(full("7.1"))
    # Nor is the number of a foreign manifest given to ours: their files could have the same names.
    foreign = [full(f"{2**31 - 1}.1"), full("8.1")]
    assert claim_run(tmp_path, [ours, *foreign], Disk()) == 9
