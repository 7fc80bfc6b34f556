"""Faults at any system call of an update and of a commit: a real server and a real trainer survive each of them."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from hotdelta.chain.format import names
from tests.chaos.rig import put
from tests.chaos.seccomp import is_supported
from tests.chaos.seeds import seeded
from tests.chaos.system_calls import Action, Call
from tests.chaos.watched import NEVER, WatchedDeployment

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="only Linux lets us stop system calls"),
    pytest.mark.I6,
]

BOTH = pytest.mark.parametrize("is_full", [False, True], ids=["delta", "full"])
# Every call is in one part, so that each takes a few minutes.
PARTS = 4
IN_PARTS = pytest.mark.parametrize("part", range(1, PARTS + 1))
LEAST_CALLS = 12
MOST_CALLS = 40
MOST_MISSES = 8
READ_ERRORS = (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ESTALE)
WRITE_ERRORS = (errno.ENOSPC, errno.EIO)
TAKING_SPACE = ("write", "pwrite64", "writev", "fallocate")

MakeAction = Callable[[WatchedDeployment], Action]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedDeployment]:
    deployment = WatchedDeployment(tmp_path_factory.mktemp("calls"), seeded("system calls"))
    yield deployment
    deployment.close()


def fail(deployment: WatchedDeployment) -> Action:
    """No file system lets the closing of a file fail that was only read."""
    number = deployment.chance.choice(READ_ERRORS)
    return lambda call: 0 if call.name == "close" else number


def change_file(change: Callable[[Path], object]) -> MakeAction:
    """The file that the call is about, or else one of the newest commit, is changed under the server.

    Not one that the copy tool is about to rename: then there may be nothing to change.
    """

    def make(deployment: WatchedDeployment) -> Action:
        def act(call: Call) -> int:
            manifest = deployment.target(deployment.newest_manifest())
            prefix = manifest.name.removesuffix(names.MANIFEST_SUFFIX)
            paths = [path for path in manifest.parent.glob(f"{prefix}.*") if path.is_file()]
            if paths:
                change(call.path if call.path in paths else deployment.chance.choice(paths))
            return 0

        return act

    return make


def replace_directory(deployment: WatchedDeployment) -> Action:
    run, away = deployment.root / "run", deployment.root / "away"

    def act(_: Call) -> int:
        run.rename(away)
        # The copy tool may have made it again. What it is writing now it must not find here half copied.
        unfinished = shutil.ignore_patterns(f"{names.TEMPORARY_PREFIX}*")
        shutil.copytree(away, run, ignore=unfinished, dirs_exist_ok=True)
        shutil.rmtree(away)
        return 0

    return act


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def replace_by_noise(path: Path) -> None:
    put(path, os.urandom(path.stat().st_size))


def overwrite(path: Path) -> None:
    """In place, with the old size."""
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))


def replace_by_pipe(path: Path) -> None:
    """Whoever opens it to read waits for ever, unless he says that he will not."""
    path.unlink()
    os.mkfifo(path)


CHANGES: tuple[Callable[[Path], object], ...] = (
    Path.unlink,
    truncate,
    replace_by_noise,
    overwrite,
    replace_by_pipe,
)
FAULTS: tuple[MakeAction, ...] = (fail, replace_directory, *(change_file(change) for change in CHANGES))


def count_survived(
    deployment: WatchedDeployment, faults: Iterable[tuple[int, MakeAction]], *, is_full: bool
) -> int:
    """Faults before calls of updates, until updates have no call of that number: not all have as many."""
    done = misses = 0
    for number, make in faults:
        call = deployment.update(number, make(deployment), is_full=is_full)
        deployment.require_recovery()
        done, misses = (done + 1, 0) if call else (done, misses + 1)
        if misses == MOST_MISSES:
            break
    print(f"{done} faults, {deployment.truth.answers} right answers")
    return done


@pytest.mark.parametrize("is_full, step", [(False, 1), (True, 4)], ids=["delta", "full"])
def test_a_fault_before_any_call_of_an_update(
    deployment: WatchedDeployment, is_full: bool, step: int
) -> None:
    """Another kind of fault at each call; of the many calls of a full only some."""
    kinds = list(FAULTS)
    deployment.chance.shuffle(kinds)
    numbers = itertools.count(1 + deployment.chance.randrange(step), step)
    assert count_survived(deployment, zip(numbers, itertools.cycle(kinds)), is_full=is_full) >= LEAST_CALLS


@pytest.mark.soak
@BOTH
def test_every_fault_before_any_call_of_an_update(deployment: WatchedDeployment, is_full: bool) -> None:
    faults = ((number, make) for number in itertools.count(1) for make in FAULTS)
    assert count_survived(deployment, faults, is_full=is_full) >= LEAST_CALLS * len(FAULTS)


def count_failed_commits(
    deployment: WatchedDeployment, errors: Iterable[tuple[int, int]], *, is_full: bool
) -> int:
    """Calls of commits fail, until a commit has no call of that number. The commit fails and says why, or succeeds."""
    failures = 0
    for number, error in errors:
        before = deployment.newest
        told = deployment.commit(number, failing(error), is_full=is_full)
        if told is None:
            break
        if told["position"] == before:
            failures += 1
            assert os.strerror(error) in told["error"]
        deployment.ask()
        deployment.require_next_commit()
    return failures


def failing(error: int) -> Action:
    return lambda _: error


@pytest.mark.parametrize("is_full, step", [(False, 1), (True, 3)], ids=["delta", "full"])
def test_a_write_that_fails_costs_one_commit_and_no_row(
    deployment: WatchedDeployment, is_full: bool, step: int
) -> None:
    """Of the many calls of a full every third one; every call, with every error, in soak."""
    numbers = itertools.count(1 + deployment.chance.randrange(step), step)
    errors = zip(numbers, itertools.cycle(WRITE_ERRORS))
    assert count_failed_commits(deployment, errors, is_full=is_full) >= LEAST_CALLS


@pytest.mark.soak
@BOTH
def test_every_write_that_fails_costs_one_commit_and_no_row(
    deployment: WatchedDeployment, is_full: bool
) -> None:
    errors = ((number, error) for number in itertools.count(1) for error in WRITE_ERRORS)
    assert count_failed_commits(deployment, errors, is_full=is_full) > LEAST_CALLS


@BOTH
def test_a_disk_that_stays_full_stops_no_training(deployment: WatchedDeployment, is_full: bool) -> None:
    before = deployment.newest
    deployment.writer_calls.arm_all(lambda call: errno.ENOSPC if call.name in TAKING_SPACE else 0)
    for _ in range(5):
        told = deployment.try_to_train(is_full=is_full)
        assert told["position"] == before
        assert "No space left" in told["error"]
        deployment.ask()
    deployment.writer_calls.disarm()
    deployment.require_next_commit()


def test_kill_between_two_calls_of_a_commit(deployment: WatchedDeployment) -> None:
    for is_full in (False, True):
        deployment.commit(NEVER, lambda _: 0, is_full=is_full)
        calls = len(deployment.writer_calls.disarm())
        assert deployment.kill_writer_at(deployment.chance.randrange(calls // 2) + 1, is_full=is_full)
        deployment.require_next_commit()


@pytest.mark.soak
@IN_PARTS
@BOTH
def test_kill_between_any_two_calls_of_a_commit(
    deployment: WatchedDeployment, is_full: bool, part: int
) -> None:
    number = part
    while deployment.kill_writer_at(number, is_full=is_full):
        deployment.require_next_commit()
        number += PARTS
    print(f"part {part}: killed before every {PARTS}th call up to {number}")
    assert number > LEAST_CALLS


def test_kill_between_two_calls_of_an_update(deployment: WatchedDeployment) -> None:
    """Not every update has as many calls as another; the first one always comes."""
    number = deployment.chance.randrange(LEAST_CALLS) + 1
    assert deployment.kill_server_at(number) or deployment.kill_server_at(1)
    deployment.wait_for_newest()


@pytest.mark.soak
@IN_PARTS
def test_kill_between_any_two_calls_of_an_update(deployment: WatchedDeployment, part: int) -> None:
    kills = 0
    for number in range(part, MOST_CALLS, PARTS):
        kills += deployment.kill_server_at(number) is not None
        deployment.wait_for_newest()
    print(f"part {part}: killed {kills} times")
    assert kills >= LEAST_CALLS // PARTS
