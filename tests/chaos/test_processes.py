"""Faults of every kind against real processes: whatever becomes of its files, the server tells the truth over HTTP."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hotdelta.chain.format import names
from tests.chaos.deployment import Deployment
from tests.chaos.rig import remove
from tests.chaos.seeds import seeded

pytestmark = pytest.mark.I4

CI_FAULTS = 160
SOAK_FAULTS = 3200

Fault = Callable[[Deployment], None]


def pick(deployment: Deployment) -> Path:
    return deployment.chance.choice(deployment.new_files())


def deliver_rest(deployment: Deployment, but: Path) -> None:
    for path in deployment.new_files():
        if path != but:
            deployment.deliver(path)


def spoilt(deployment: Deployment, change: Callable[[bytearray], object]) -> None:
    """One file of the commit arrives damaged, the others whole; it is copied again later."""
    path = pick(deployment)
    content = bytearray(path.read_bytes())
    change(content)
    deployment.deliver(path, bytes(content))
    deliver_rest(deployment, path)
    deployment.wait_for_newest_or_reason()
    deployment.deliver(path)


def flip(deployment: Deployment) -> None:
    chance = deployment.chance

    def change(content: bytearray) -> None:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)

    spoilt(deployment, change)


def cut_off(deployment: Deployment) -> None:
    spoilt(
        deployment,
        lambda content: content.__delitem__(slice(deployment.chance.randrange(len(content)), None)),
    )


def lengthen(deployment: Deployment) -> None:
    spoilt(deployment, lambda content: content.extend(b"\0\0"))


def out_of_order(deployment: Deployment) -> None:
    paths = deployment.new_files()
    deployment.chance.shuffle(paths)
    for path in paths:
        deployment.deliver(path)
        deployment.ask()


def manifest_first(deployment: Deployment) -> None:
    for path in reversed(deployment.new_files()):
        deployment.deliver(path)
        deployment.ask()


def byte_by_byte(deployment: Deployment) -> None:
    """A copy tool that writes in place."""
    for path in deployment.new_files():
        target, content = deployment.target(path), path.read_bytes()
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb", buffering=0) as file:
            for start in range(0, len(content), max(1, len(content) // 4)):
                file.write(content[start : start + max(1, len(content) // 4)])
                deployment.ask()


def vanish(deployment: Deployment) -> None:
    """A file is there, is taken away, and comes again."""
    path = pick(deployment)
    deployment.deliver_all()
    deployment.target(path).unlink(missing_ok=True)
    if path.name.endswith(names.MANIFEST_SUFFIX):
        # What has no manifest does not exist: there is nothing to be said of it.
        deployment.ask()
    else:
        deployment.wait_for_newest_or_reason()
    deployment.deliver(path)


def become_something_else(deployment: Deployment) -> None:
    path = pick(deployment)
    target = deployment.target(path)
    makers: list[Callable[[], object]] = [
        target.mkdir,
        lambda: os.mkfifo(target),
        lambda: target.symlink_to("/dev/zero"),
        lambda: target.symlink_to(path),
        target.touch,
    ]
    deployment.chance.choice(makers)()
    deliver_rest(deployment, path)
    deployment.wait_for_newest_or_reason()
    remove(target)
    deployment.deliver(path)


def twice(deployment: Deployment) -> None:
    """The same commit once more, under another name."""
    copies = []
    for path in deployment.new_files():
        deployment.deliver(path)
        target = deployment.target(path)
        copies.append(target.with_name(target.name.replace("ckpt-", "ckpt-9")))
        shutil.copy(target, copies[-1])
    deployment.ask()
    deployment.wait_for_newest()
    for copy in copies:
        copy.unlink()


def clocks_jump(deployment: Deployment) -> None:
    jump = deployment.chance.choice([-1e9, -3600.0, 3600.0, 1e9])
    for path in deployment.new_files():
        deployment.deliver(path)
        status = path.stat()
        os.utime(deployment.target(path), (status.st_atime + jump, status.st_mtime + jump))


def directory_replaced(deployment: Deployment) -> None:
    """The whole directory is moved away, and a copy of it takes its place."""
    run = deployment.root / "run"
    run.rename(deployment.root / "old")
    deployment.ask()
    shutil.copytree(deployment.root / "old", run)
    deployment.deliver_all()
    deployment.ask()
    shutil.rmtree(deployment.root / "old")


def pause_server(deployment: Deployment) -> None:
    """It sees nothing for a moment: events pile up."""
    deployment.server.process.send_signal(signal.SIGSTOP)
    deployment.deliver_all()
    threading.Event().wait(0.02)
    deployment.server.process.send_signal(signal.SIGCONT)


def kill_server(deployment: Deployment) -> None:
    deployment.deliver_all()
    deployment.kill_server()


def kill_writer(deployment: Deployment) -> None:
    deployment.kill_writer()
    deployment.deliver_all()


COMMON: list[Fault] = [
    flip,
    flip,
    cut_off,
    lengthen,
    out_of_order,
    manifest_first,
    byte_by_byte,
    vanish,
    twice,
    become_something_else,
    clocks_jump,
    directory_replaced,
    pause_server,
]


def run_faults(root: Path, faults: int, *, kills: int) -> None:
    """Each fault is one more commit on its way to the server; afterwards the newest is served."""
    chance = seeded("processes")
    deployment = Deployment(root, chance)
    schedule = [chance.choice(COMMON) for _ in range(faults - 2 * kills)]
    for killing in (kill_server, kill_writer):
        for _ in range(kills):
            schedule.insert(chance.randrange(len(schedule)), killing)
    done: Counter[str] = Counter()
    try:
        for number, fault in enumerate(schedule):
            deployment.train(is_full=number % 7 == 0)
            print(number, fault.__name__, deployment.newest, flush=True)
            fault(deployment)
            deployment.deliver_all()
            deployment.wait_for_newest()
            deployment.require_health()
            done[fault.__name__] += 1
    finally:
        deployment.close()
    print(f"{sum(done.values())} faults, {deployment.truth.answers} right answers: {dict(done)}")
    assert sum(done.values()) == faults
    assert done.keys() == {fault.__name__ for fault in (*COMMON, kill_server, kill_writer)}


def test_every_kind_of_fault_against_real_processes(tmp_path: Path) -> None:
    run_faults(tmp_path, CI_FAULTS, kills=2)


@pytest.mark.soak
def test_thousands_of_faults_against_real_processes(tmp_path: Path) -> None:
    run_faults(tmp_path, SOAK_FAULTS, kills=20)
