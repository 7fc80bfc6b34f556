"""What happens when an update fails where it must not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotdelta.chain import ApplyDelta, Node, Position, Step
from hotdelta.errors import ApplyError, DamagedError
from loader.checks.checks import Checks
from loader.files.delta_in_memory import DeltaFiles
from loader.follow.applier import FollowLimits
from loader.follow.broken_links import BrokenLinks
from loader.follow.chain_view import ChainView
from loader.follow.follower import Follower
from loader.model import delta_staging
from loader.model.gate import Gate
from loader.model.live_model import LiveModel
from loader.model.served import Origin, Served, Serving, Version
from tests.loader.step_model import SIGNATURE, Trainer, find_commit


class FailingModel(LiveModel):
    """One of its applies fails, as if memory had run out; the first is number 1."""

    applies = 0
    failing = 0

    def apply(self) -> None:
        self.applies += 1
        if self.applies == self.failing:
            raise ApplyError("out of memory")
        super().apply()


@contextmanager
def serving_with(model: LiveModel) -> Iterator[Serving]:
    assert model.node is not None
    serving = Serving(Gate(), wall_clock=time.time, on_first_served=lambda: None)
    version = Version(model.node.position, model.step, 1)
    serving.publish(Served(model, model.node, version, Origin(None, 0), 0.0))
    yield serving
    serving.close()
    model.close()


@pytest.fixture
def serving(root: Path) -> Iterator[Serving]:
    with serving_with(FailingModel.load(root / "export" / "1")) as serving:
        yield serving


def view_of(root: Path) -> ChainView:
    broken = BrokenLinks(root / "run", late_seconds=60, clock=time.monotonic)
    chain = ChainView(root / "run", broken=broken, wall_clock=time.time)
    chain.look()
    return chain


def follow(
    chain: ChainView, serving: Serving, step: Step, *, full_diff_bytes: int, checks: Checks | None = None
) -> bool:
    limits = FollowLimits(undo_bytes=2**20, full_diff_bytes=full_diff_bytes, slice_bytes=64)
    made = Follower(serving, chain, limits, checks=checks, clock=time.monotonic, wall_clock=time.time)
    try:
        return made.follow([step], lambda served: True)
    finally:
        made.close()


def test_delta_that_is_refused_at_the_last_moment_leaves_the_old_state(root: Path, serving: Serving) -> None:
    trainer = Trainer(root / "run")
    delta = find_commit(root / "run", trainer.train([1, 2, 3]))
    trainer.close()
    served = serving.current
    assert served is not None
    assert isinstance(served.model, FailingModel)
    served.model.failing = 1
    before = serving.predict(SIGNATURE, {"ids": [1]})[0]["users"].tobytes()
    assert not follow(view_of(root), serving, ApplyDelta(delta), full_diff_bytes=0)
    outputs, version = serving.predict(SIGNATURE, {"ids": [1]})
    assert (outputs["users"].tobytes(), version) == (before, served.version)
    assert follow(view_of(root), serving, ApplyDelta(delta), full_diff_bytes=0)
    assert serving.predict(SIGNATURE, {"ids": [1]})[1].position == delta.position


class TornModel(LiveModel):
    """Its applies fail in the middle, so that it does not hold the state before any more."""

    def apply(self) -> None:
        raise ApplyError("out of memory")

    def holds(self, node: Node) -> bool:
        return False


def test_model_that_an_update_left_half_way_is_freed(root: Path) -> None:
    trainer = Trainer(root / "run")
    delta = find_commit(root / "run", trainer.train([1, 2, 3]))
    trainer.close()
    model = TornModel.load(root / "export" / "1")
    with serving_with(model) as serving:
        assert not follow(view_of(root), serving, ApplyDelta(delta), full_diff_bytes=0)
        assert serving.current is None
        assert model.signatures == (), "it is closed"


def test_waiting_for_a_position_ends_when_time_is_up(serving: Serving) -> None:
    assert serving.wait_for(Position(1, 2), 0)
    assert not serving.wait_for(Position(1, 3), 0.01)


@pytest.mark.parametrize("beside_bytes", [0, 2**40], ids=["beside staging", "before staging"])
def test_nothing_is_applied_before_its_digests_were_found_right(
    root: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch, beside_bytes: int
) -> None:
    monkeypatch.setattr(delta_staging, "_BESIDE_BYTES", beside_bytes)
    trainer = Trainer(root / "run")
    delta = find_commit(root / "run", trainer.train([1, 2, 3]))
    trainer.close()
    served = serving.current
    assert served is not None
    compared_in: list[str] = []

    def slow_and_wrong(files: DeltaFiles) -> None:
        compared_in.append(threading.current_thread().name)
        time.sleep(0.05)
        raise DamagedError("not the right digest", path=files.prefix, position="")

    assert not follow(
        view_of(root), serving, ApplyDelta(delta), full_diff_bytes=0, checks=Checks(digests=slow_and_wrong)
    )
    assert compared_in[0].startswith("hotdelta-verify") == (beside_bytes == 0)
    assert serving.predict(SIGNATURE, {"ids": [1]})[1] == served.version
    with pytest.raises(ApplyError, match="nothing is staged"):
        served.model.apply()
    assert isinstance(served.model, FailingModel)
    served.model.failing = 0
    assert follow(view_of(root), serving, ApplyDelta(delta), full_diff_bytes=0)
