"""File-system events get lost in every way they can, under real servers: polling finds what comes."""

from __future__ import annotations

import errno
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotdelta.chain.format import names
from tests.chaos.deployment import Deployment
from tests.chaos.programs import asking, follow
from tests.chaos.seccomp import WATCHES, is_supported
from tests.chaos.seeds import seeded
from tests.chaos.system_calls import Action, SystemCalls
from tests.end_to_end.processes import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not is_supported(), reason="only Linux lets us stop system calls")

QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")
MOST_EVENTS = 200_000


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("events"), seeded("lost events"))
    yield deployment
    deployment.close()


def require_updates(deployment: Deployment, *servers: Server) -> None:
    """Whatever comes is served, by all of them."""
    for _ in range(3):
        deployment.train()
        deployment.deliver_all()
        deployment.wait_for_newest()
        for server in servers:
            deployment.truth.wait_for(server, deployment.newest)
    deployment.require_health()


def exhausted() -> Action:
    """The limit of inotify watches is used up, and the server is told so."""
    return lambda _: errno.ENOSPC


def silent() -> Action:
    """As on a network file system: a watch is set, and what others change is never told."""
    numbers = itertools.count(1)
    return lambda _: -next(numbers)


@pytest.mark.parametrize("make, is_told", [(exhausted, True), (silent, False)])
def test_a_server_without_events_beside_one_that_has_them(
    deployment: Deployment, make: Callable[[], Action], is_told: bool
) -> None:
    """The two do not disturb each other."""
    root, complaint = deployment.root, "directory cannot be watched"
    before = deployment.server.said.count(complaint)
    with SystemCalls(root / f"calls-{make.__name__}", within=root) as calls:
        calls.arm_all(make())
        deaf = follow(root, launcher=asking(root / f"calls-{make.__name__}", WATCHES))
        try:
            require_updates(deployment, deaf)
            assert calls.acted_on is not None
            wait_until(
                lambda: (deaf.said.count(complaint) > before) == is_told, "the log says so, where it can"
            )
        finally:
            deaf.kill()
    require_updates(deployment)


def overflow(directory: Path) -> None:
    """More events than the kernel keeps for who does not fetch them; of a kind that nobody need look at."""
    paths = [directory / f"{names.TEMPORARY_PREFIX}{name}" for name in ("a", "b")]
    for _ in range(int(QUEUE.read_text()) // 2 + 100):
        # In turns: the kernel drops an event that is like the one before.
        for path in paths:
            path.touch()
            path.unlink()


def test_a_queue_of_events_that_overflows(deployment: Deployment) -> None:
    """What is committed while the queue is full is told to nobody."""
    if int(QUEUE.read_text()) > MOST_EVENTS:
        pytest.skip("this machine keeps more events than a test can make")
    run, server = deployment.root / "run", deployment.server
    # Before the first delta there is no directory for them.
    require_updates(deployment)
    for directory in (run / names.DELTA_DIRECTORY, run):
        deployment.train(is_full=directory == run)
        server.process.send_signal(signal.SIGSTOP)
        overflow(directory)
        deployment.deliver_all()
        server.process.send_signal(signal.SIGCONT)
        deployment.wait_for_newest()
        deployment.require_health()
    wait_until(lambda: "queue overflowed" in server.said, "the events were lost")
    require_updates(deployment)
