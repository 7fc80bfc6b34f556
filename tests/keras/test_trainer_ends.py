"""How a trainer process may end: killed in the middle of saves, terminated, or by an exception nobody tells us of."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hotdelta.chain.format import names
from tests.keras.small_models import manifests
from tests.keras.trainer_processes import Zygote
from tests.waiting import wait_until

pytestmark = pytest.mark.I6

LONGEST_SECONDS = 0.1


def kill_again_and_again(zygote: Zygote, run_dir: Path, reference_dir: Path, *, kills: int) -> None:
    """Every start must find what an uninterrupted run held at the step that it resumes."""
    seed = int(os.environ.get("HOTDELTA_KILL_SEED", random.randrange(2**32)))
    print(f"HOTDELTA_KILL_SEED={seed} replays these moments")
    moments = random.Random(seed)
    found = []
    for number in range(kills):
        trainer = zygote.start("train_until_killed", run_dir)
        # Tracing the first step takes long, and nothing is saved meanwhile.
        found.append(trainer.wait_for_report(2)[0])
        if number % 4:
            # However slow the machine is, most of the kills come after a save.
            wait_for_a_save(run_dir, after_step=found[-1]["step"])
        time.sleep(moments.uniform(0.0, LONGEST_SECONDS))
        trainer.send(signal.SIGKILL)
        assert trainer.wait() == -signal.SIGKILL
    _, last = zygote.run("look", run_dir)
    found += last
    assert len({report["step"] for report in found}) > kills // 2
    steps = max(report["step"] for report in found)
    status, reference = zygote.run("train_to", reference_dir, steps=steps)
    assert status == 0
    expected = {report["step"]: report["digest"] for report in reference}
    assert [report["problems"] for report in found if report["problems"]] == []
    assert [report["step"] for report in found] == sorted(report["step"] for report in found)
    assert [report["step"] for report in found if report["digest"] != expected[report["step"]]] == []
    assert [r["step"] for r in found if r["step"] and r["state"]["reader"] != r["step"] - 1] == []


def wait_for_a_save(run_dir: Path, *, after_step: int) -> None:
    def is_saved() -> bool:
        return any(manifest.step > after_step for manifest in manifests(run_dir))

    wait_until(is_saved, f"the trainer process saves after step {after_step}", poll_seconds=0.002)


def test_a_trainer_killed_at_random_moments_resumes_what_an_uninterrupted_one_held(
    zygote: Zygote, tmp_path: Path
) -> None:
    kill_again_and_again(zygote, tmp_path / "run", tmp_path / "reference", kills=12)


def read_again_and_again(zygote: Zygote, run_dir: Path, *, kills: int, steps_per_call: int) -> None:
    """Whatever was read ahead when the trainer was killed: no example is left out, none is trained twice."""
    moments = random.Random(int(os.environ.get("HOTDELTA_KILL_SEED", random.randrange(2**32))))
    for _ in range(kills):
        trainer = zygote.start("read_until_killed", run_dir, steps_per_call=steps_per_call)
        resumed = trainer.wait_for_report()[0]["bookmark"]
        wait_for_a_save(run_dir, after_step=resumed)
        time.sleep(moments.uniform(0.0, 5 * LONGEST_SECONDS))
        trainer.send(signal.SIGKILL)
        assert trainer.wait() == -signal.SIGKILL
        _, (found,) = zygote.run("look_at_examples", run_dir)
        assert found["bookmark"] > resumed
        assert (found["before"], found["after"]) == ([1.0], [0.0])


@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_a_reader_with_bookmarks_skips_nothing_and_repeats_nothing_when_it_is_killed(
    zygote: Zygote, tmp_path: Path, steps_per_call: int
) -> None:
    read_again_and_again(zygote, tmp_path / "run", kills=4, steps_per_call=steps_per_call)


@pytest.mark.soak
@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_a_reader_with_bookmarks_is_killed_forty_times(
    zygote: Zygote, tmp_path: Path, steps_per_call: int
) -> None:
    read_again_and_again(zygote, tmp_path / "run", kills=40, steps_per_call=steps_per_call)


@pytest.mark.soak
def test_a_trainer_killed_a_hundred_times_resumes_what_an_uninterrupted_one_held(
    zygote: Zygote, tmp_path: Path
) -> None:
    kill_again_and_again(zygote, tmp_path / "run", tmp_path / "reference", kills=100)


@pytest.mark.parametrize(
    "scenario, status, steps",
    [
        ("fit_and_be_told", -signal.SIGTERM, 4),
        ("validate_and_be_told", -signal.SIGTERM, 6),
        ("loop_and_be_told", -signal.SIGTERM, 4),
        ("fail_in_another_callback", 7, 4),
    ],
)
def test_a_trainer_that_is_ended_saves_its_last_step(
    zygote: Zygote, tmp_path: Path, scenario: str, status: int, steps: int
) -> None:
    ended_with, told = zygote.run(scenario, tmp_path)
    assert ended_with == status
    assert [report["step"] for report in told] == list(range(1, steps + 1))
    _, [found] = zygote.run("look", tmp_path)
    assert (found["step"], found["digest"]) == (steps, told[-1]["digest"])


@pytest.mark.parametrize("scenario", ["fit_on_a_full_disk", "loop_on_a_full_disk"])
def test_a_trainer_whose_last_save_is_not_on_disk_does_not_end_well(
    zygote: Zygote, tmp_path: Path, scenario: str
) -> None:
    ended_with, _ = zygote.run(scenario, tmp_path)
    assert ended_with == 1
    assert manifests(tmp_path)[-1].step == 0


def test_termination_works_when_another_callback_ended_fit(zygote: Zygote, tmp_path: Path) -> None:
    ended_with, told = zygote.run("be_told_after_a_failure", tmp_path)
    assert ended_with == -signal.SIGTERM
    assert told[-1]["step"] == 2


def test_what_a_killed_full_leaves_is_swept_at_the_next_start(zygote: Zygote, tmp_path: Path) -> None:
    zygote.run("train_to", tmp_path, steps=1)
    leftover = tmp_path / f"{names.TEMPORARY_PREFIX}model.ckpt-in-progress.data-00000-of-00002"
    leftover.write_bytes(b"half a full")
    zygote.run("look", tmp_path)
    assert not leftover.exists()
    assert manifests(tmp_path)
