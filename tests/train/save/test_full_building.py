"""A full that is copied while training goes on equals, bit for bit, what the links lead to."""

from __future__ import annotations

import itertools
import random

import pytest

from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.train.save import full_builder
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery
from tests.train.conftest import StartTraining
from tests.train.small_training import SlowDisk, SmallTraining

pytestmark = pytest.mark.I1

EVERY_STEP = WriterOptions(full=SaveEvery(steps=1), delta=SaveEvery(), keep_fulls=1000, scrub_saves=0)
ROW_BYTES = 12
STEPS = 60


@pytest.fixture
def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_builder, "CHUNK_BYTES", 3 * ROW_BYTES)


def has_several_fulls(training: SmallTraining) -> bool:
    """Some of them at positions whose values are known."""
    fulls = {manifest.position for manifest in training.manifests(Kind.FULL)}
    return len(fulls) > 3 and len(fulls & training.saved.keys()) > 2


@pytest.mark.usefixtures("few_rows_at_a_time")
@pytest.mark.parametrize("mode", list(Tracking))
@pytest.mark.parametrize("seed", range(3))
def test_fulls_copied_during_training_equal_the_links(
    start_training: StartTraining, mode: Tracking, seed: int
) -> None:
    moments = random.Random(seed)
    disk = SlowDisk()
    training = start_training(mode=mode, options=EVERY_STEP, disk=disk, seed=seed)
    disk.hold()
    for step in itertools.count():
        if step >= STEPS and has_several_fulls(training):
            break
        training.train()
        disk.allow(moments.choice([0, 2, 10, 40]))
        if moments.random() < 0.7:
            training.save()
    disk.open()
    training.trainer.finish()
    training.remember()
    training.check()
    training.close()


@pytest.mark.usefixtures("few_rows_at_a_time")
@pytest.mark.parametrize("mode", list(Tracking))
def test_a_failed_delta_in_the_middle_of_a_full_harms_neither(
    start_training: StartTraining, mode: Tracking
) -> None:
    disk = SlowDisk()
    training = start_training(mode=mode, options=EVERY_STEP, disk=disk)
    disk.hold()
    training.train()
    (training.run_dir / ".incremental_checkpoint").rename(training.run_dir / "aside")
    training.train()
    training.trainer.cut(is_closing=False)
    training.settle()
    (training.run_dir / "aside").rename(training.run_dir / ".incremental_checkpoint")
    training.train()
    disk.open()
    training.trainer.finish()
    training.remember()
    assert training.trainer.status.failures == 1
    training.check()
