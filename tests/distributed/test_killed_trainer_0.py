"""Trainer 0 of a job is killed at every point of a save: all trainers go on from the same committed position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotdelta.chain.history.scan import Scanner
from hotdelta.train import Job, TrainerProgress
from hotdelta.train.jobs.job import JobFolder, progress_name
from tests.distributed.cluster import Cluster, Reporter
from tests.waiting import wait_until

pytestmark = pytest.mark.I6

TRAINERS = 3


def start(cluster: Cluster, run_dir: Path, *, dies: str = "") -> tuple[Reporter, list[Reporter]]:
    leader = cluster.lead(run_dir, TRAINERS, dies=dies)
    leader.wait_for("resumed")
    return leader, [cluster.train_along(run_dir, number, TRAINERS) for number in range(1, TRAINERS)]


def newest_step(run_dir: Path) -> int:
    return max(Scanner(run_dir).scan().manifests, key=lambda manifest: manifest.position).step


def committed_progress(run_dir: Path) -> list[Any]:
    """Of trainer 1, 2 and so on."""
    found = [TrainerProgress(run_dir, Job("ranking", n, TRAINERS)).resumed for n in range(1, TRAINERS)]
    return [[state.step, state.registered["reader"]] if state else None for state in found]


def assert_all_go_on_from_the_newest_commit(cluster: Cluster, run_dir: Path) -> None:
    step, progress = newest_step(run_dir), committed_progress(run_dir)
    commits = len(Scanner(run_dir).scan().manifests)
    leader, others = start(cluster, run_dir)
    assert leader.wait_for("resumed") == [step, step]
    assert [other.wait_for("resumed") for other in others] == progress
    wait_until(lambda: len(Scanner(run_dir).scan().manifests) > commits + 1, "more commits")
    for trainer in (*others, leader):
        trainer.stop()
    assert newest_step(run_dir) > step


@pytest.mark.parametrize(
    "point",
    [
        "before it asks",
        "when all have answered",
        "before the first file",
        "before the manifest",
        "after the manifest",
    ],
)
def test_trainer_0_that_dies_in_a_save_takes_nobody_elsewhere(
    point: str, cluster: Cluster, tmp_path: Path
) -> None:
    leader, others = start(cluster, tmp_path, dies=point)
    leader.wait_for("saved position", 3)
    leader.die()
    attempted, saved = leader.said("saves")[-1], newest_step(tmp_path)
    assert saved in (attempted, attempted - 1)
    assert (saved == attempted) is (point in ("after the manifest", "before it asks"))
    for other in others:
        other.kill()
    assert_all_go_on_from_the_newest_commit(cluster, tmp_path)


@pytest.mark.parametrize("answering", [0, 1])
def test_trainer_0_that_is_killed_while_it_waits_for_answers(
    answering: int, cluster: Cluster, tmp_path: Path
) -> None:
    leader, others = start(cluster, tmp_path)
    leader.wait_for("saved position", 3)
    for other in others[answering:]:
        other.halt()
    wait_until(lambda: is_waiting_for(tmp_path, answering), "a save that waits")
    attempted = leader.said("saves")[-1]
    leader.kill()
    assert newest_step(tmp_path) == attempted - 1
    for other in others:
        other.kill()
    assert_all_go_on_from_the_newest_commit(cluster, tmp_path)


def test_trainer_0_that_is_started_again_alone_takes_the_others_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    leader, others = start(cluster, tmp_path)
    leader.wait_for("saved position", 3)
    leader.kill()
    step, progress = newest_step(tmp_path), committed_progress(tmp_path)
    leader = cluster.lead(tmp_path, TRAINERS)
    for other in others:
        other.wait_for_end()
        assert "JobRestartedError: trainer 0 was started again, from 1." in other.log()
    others = [cluster.train_along(tmp_path, number, TRAINERS) for number in range(1, TRAINERS)]
    assert leader.wait_for("resumed") == [step, step]
    assert [other.wait_for("resumed") for other in others] == progress
    leader.wait_for("saved position")
    assert newest_step(tmp_path) > step


def is_waiting_for(run_dir: Path, answering: int) -> bool:
    """Who is not halted has answered the newest request, somebody else has not, and the cut is not taken."""
    folder = JobFolder(run_dir)
    request, taken = folder.read("request") or {}, folder.read("taken") or {}
    answers = [folder.read(progress_name(number)) or {} for number in range(1, TRAINERS)]
    answered = [answer.get("answers") == request.get("id") for answer in answers]
    return taken.get("id") != request.get("id") and all(answered[:answering]) and not all(answered)
