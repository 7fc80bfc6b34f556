"""A real server that must load a full beside: it answers at every read of it, and survives a fault at each of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.deployment import Deployment
from tests.chaos.programs import asking
from tests.chaos.seccomp import OPENS, is_supported
from tests.chaos.seeds import seeded
from tests.chaos.system_calls import Call, SystemCalls
from tests.chaos.test_system_calls import FAULTS, count_survived
from tests.chaos.watched import WatchedDeployment
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="only Linux lets us stop system calls"),
    pytest.mark.soak,
]

# Those that no prediction makes: it can be asked while one of them waits.
READS = (*OPENS, "newfstatat", "getdents64", "pread64", "preadv", "preadv2")
# The layout, the values, the comparison up to the first difference, and all of it into the second model.
READS_OF_A_FULL = 2 + 3 + 1 + 3
STEP = 3


class BesideDeployment(WatchedDeployment):
    """Whatever a full differs in is too much for its server."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.writer_calls = SystemCalls(root / "writer-calls", within=root / "source")
        self.server_calls = SystemCalls(root / "server-calls", within=root / "run")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOTDELTA_FULL_DIFF_BYTES", "0")
            launcher = asking(root / "server-calls", READS)
            Deployment.__init__(self, root, chance, server_launcher=launcher)

    def deliver_full(self) -> None:
        """Without the delta that closes it, so that the way leads through the full."""
        self.train(is_full=True)
        self.withheld.update(path for path in self.new_files() if path.parent != self.root / "source")
        self.deliver_all()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BesideDeployment]:
    deployment = BesideDeployment(tmp_path_factory.mktemp("beside"), seeded("full beside"))
    yield deployment
    deployment.close()


def test_predictions_are_answered_at_every_read_of_a_full(deployment: BesideDeployment) -> None:
    """While the server waits for a read it answers: nothing is read while predictions wait for an update."""
    answers: list[tuple[str, str]] = []

    def ask(call: Call) -> int:
        answers.append((call.name, deployment.ask()))
        return 0

    before = deployment.newest
    deployment.server_calls.arm_all(ask)
    deployment.deliver_full()
    wait_until(lambda: ("getdents64", deployment.newest) in answers, "the full is served")
    deployment.server_calls.disarm()
    reads = [position for name, position in answers if name.startswith("pread")]
    assert reads.count(before) >= READS_OF_A_FULL
    wait_until(lambda: "loading full beside" in deployment.server.said, "it is in the log")


def test_a_fault_before_any_call_of_a_full_beside(deployment: BesideDeployment) -> None:
    """Another kind of fault at each call, and at other calls with another seed."""
    kinds = list(FAULTS)
    deployment.chance.shuffle(kinds)
    numbers = itertools.count(1 + deployment.chance.randrange(STEP), STEP)
    assert count_survived(deployment, zip(numbers, itertools.cycle(kinds)), is_full=True) >= READS_OF_A_FULL
    assert "half-way" not in deployment.server.said
