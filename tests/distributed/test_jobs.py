from __future__ import annotations

import itertools
import json
import logging
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from hotdelta.chain import BundleReader, Manifest, directory_of
from hotdelta.chain.format.names import TRAINER_STATE_TENSOR
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import CommitError, ConfigurationError, JobRestartedError
from hotdelta.train import DeltaWriter, Job, TrainerProgress
from hotdelta.train.jobs.job import JobFolder, progress_name
from hotdelta.train.jobs.saves import JobSaves
from hotdelta.train.model.assembly import assemble
from hotdelta.train.model.optimizer_slots import KeyedVariable
from hotdelta.train.save.chain_trainer import ChainTrainer
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import SaveEvery
from tests.distributed.cluster import Cluster
from tests.keras.small_models import by_hand, small_model
from tests.waiting import LIMIT_SECONDS, wait_until

EVERY_STEP = WriterOptions(full=SaveEvery(), delta=SaveEvery(steps=1))


def trainer_0(run_dir: Path, job: Job | None, *, every_steps: int | None = None) -> DeltaWriter:
    return DeltaWriter(
        run_dir, {"weight": tf.Variable(0.0)}, None, None, save_incremental_steps=every_steps, job=job
    )


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def due_at_every_step(run_dir: Path, job: Job, clock: Clock) -> ChainTrainer:
    trainer = ChainTrainer(run_dir, options=EVERY_STEP, job=job, clock=clock)
    trainer.start(assemble([KeyedVariable("weight", tf.Variable(0.0))], table_keys=()), touched={})
    return trainer


def request(run_dir: Path) -> str | None:
    """The id of the newest."""
    found = JobFolder(run_dir).read("request")
    return found["id"] if found else None


def has_answered(run_dir: Path, trainer_id: int) -> bool:
    found = JobFolder(run_dir).read(progress_name(trainer_id))
    return found is not None and found.get("answers") == request(run_dir)


def state_at(run_dir: Path, manifest: Manifest) -> Any:
    with BundleReader(directory_of(run_dir, manifest.kind), manifest.prefix) as reader:
        return json.loads(reader.read(TRAINER_STATE_TENSOR).tobytes())


def commits(run_dir: Path) -> int:
    return len(Scanner(run_dir).scan().manifests)


def test_progress_of_every_trainer_is_in_one_commit(cluster: Cluster, tmp_path: Path) -> None:
    places = [0]
    with trainer_0(tmp_path, Job("ranking", 0, 3)) as writer:
        others = [cluster.train_along(tmp_path, number, 3) for number in (1, 2)]
        writer.register_state("reader", lambda: places[-1])
        for place in range(1, 4):
            places.append(place)
            for other in others:
                other.wait_for("step", len(other.said("step")) + 3)
            writer.step()
            writer.save()
        for other in others:
            other.stop()
        ends = [other.said("saved")[-1] for other in others]
    again = [TrainerProgress(tmp_path, Job("ranking", number, 3)).resumed for number in (1, 2)]
    assert [state and (state.step, state.registered["reader"]) for state in again] == [(n, n) for n in ends]
    with DeltaWriter(tmp_path, {"weight": tf.Variable(0.0)}, job=Job("ranking")) as writer:
        assert writer.resumed is not None
        assert writer.resumed.state == {"reader": 3}


def test_killed_trainer_holds_back_the_commit_and_all_resume_at_the_last_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    writer = trainer_0(tmp_path, Job("ranking", 0, 3, answer_seconds=2))
    first, second = (cluster.train_along(tmp_path, number, 3) for number in (1, 2))
    writer.step()
    for other in (first, second):
        other.wait_for("step")
    wait_until(lambda: is_saved(writer), "a save that all have answered in time")
    saved = commits(tmp_path)
    second.kill()
    writer.step()
    with pytest.raises(CommitError, match="2 did not answer"):
        writer.save()
    assert commits(tmp_path) == saved
    first.wait_for("step", len(first.said("step")) + 5)
    first.kill()
    with pytest.raises(CommitError):
        writer.close()

    first, second = (cluster.train_along(tmp_path, number, 3) for number in (1, 2))
    writer = trainer_0(tmp_path, Job("ranking", 0, 3))
    assert writer.resumed is not None
    assert writer.resumed.step == 1
    committed = [TrainerProgress(tmp_path, Job("ranking", number, 3)).resumed for number in (1, 2)]
    for other, state in zip((first, second), committed, strict=True):
        assert state is not None
        assert other.wait_for("resumed") == [state.step, state.step]
    writer.step()
    writer.save()
    assert commits(tmp_path) == saved + 1
    first.stop()
    second.stop()
    writer.close()


def is_saved(writer: DeltaWriter) -> bool:
    try:
        writer.save()
    except CommitError:
        return False
    return True


def test_due_delta_does_not_stop_trainer_0_while_others_finish_their_step(tmp_path: Path) -> None:
    with trainer_0(tmp_path, Job("ranking", 0, 2), every_steps=1) as writer:
        other = TrainerProgress(tmp_path, Job("ranking", 1, 2))
        writer.step()
        writer.step()
        assert commits(tmp_path) == 1
        answering = threading.Thread(target=step_until_asked, args=(other,), name="trainer-1")
        answering.start()
        wait_until(lambda: has_answered(tmp_path, 1), "the answer of trainer 1")
        assert answering.is_alive(), "it must not train on before the cut is taken"
        writer.step()
        answering.join(LIMIT_SECONDS)
        assert not answering.is_alive()
        other.close()
    assert commits(tmp_path) > 1
    resumed = TrainerProgress(tmp_path, Job("ranking", 1, 2)).resumed
    assert resumed is not None
    assert resumed.step == 3


def step_until_asked(other: TrainerProgress) -> None:
    """A trainer that is no further than trainer 0 stops two steps after it was asked."""
    for _ in range(3):
        other.step()


def test_nobody_waits_for_the_cut_of_a_trainer_0_that_was_killed(tmp_path: Path) -> None:
    trainer_0(tmp_path, Job("ranking")).close()
    JobFolder(tmp_path).write("request", {"id": "of one that was killed", "run": 1, "start": "nothing"})
    early = TrainerProgress(tmp_path, Job("ranking", 1, 3, answer_seconds=600))
    answering = threading.Thread(target=early.step, name="trainer-1", daemon=True)
    answering.start()
    wait_until(lambda: has_answered(tmp_path, 1), "an answer to the dead")
    with trainer_0(tmp_path, Job("ranking", 0, 3)) as writer:
        answering.join(LIMIT_SECONDS)
        assert not answering.is_alive()
        late = TrainerProgress(tmp_path, Job("ranking", 2, 3, answer_seconds=600))
        late.step()
        assert not has_answered(tmp_path, 2)
        early.close()
        late.close()
        writer.step()
        writer.save()


def test_trainer_that_looks_too_late_does_not_wait_for_a_cut_that_is_over(tmp_path: Path) -> None:
    trainer_0(tmp_path, Job("ranking")).close()
    folder = JobFolder(tmp_path)
    folder.write("request", {"id": "first", "run": 1, "start": "nothing"})
    late = TrainerProgress(tmp_path, Job("ranking", 1, 2, answer_seconds=600))
    answering = threading.Thread(target=late.step, name="trainer-1", daemon=True)
    answering.start()
    wait_until(lambda: has_answered(tmp_path, 1), "an answer")
    folder.write("request", {"id": "second", "run": 1, "start": "nothing"})
    answering.join(LIMIT_SECONDS)
    assert not answering.is_alive()


def test_trainers_that_step_together_do_not_wait_for_each_other_in_vain(tmp_path: Path) -> None:
    """As those whose gradients are summed: nobody ends a step before all have begun it.

    They go on until there are enough commits: how many steps are made between a request and its answers is open.
    """
    together, last = threading.Barrier(2), list[int]()

    def train_along() -> None:
        with TrainerProgress(tmp_path, Job("ranking", 1, 2)) as progress:
            for step in itertools.count(1):
                together.wait(LIMIT_SECONDS)
                progress.step()
                if step in last:
                    break

    weight = tf.Variable(0.0)
    options: dict[str, Any] = {"save_incremental_steps": 5, "scrub_saves": 0, "job": Job("ranking", 0, 2)}
    with DeltaWriter(tmp_path, {"weight": weight}, None, None, **options) as writer:
        other = threading.Thread(target=train_along, name="trainer-1", daemon=True)
        other.start()
        for step in itertools.count(1):
            if step >= 200 and commits(tmp_path) > 3:
                last.append(step)
            weight.assign_add(1.0)
            together.wait(LIMIT_SECONDS)
            writer.step()
            if last:
                break
        other.join(LIMIT_SECONDS)
    states = [state_at(tmp_path, delta) for delta in Scanner(tmp_path).scan().manifests[1:]]
    assert len(states) > 2
    assert [state["trainers"]["1"]["step"] for state in states] == [state["step"] for state in states]


def test_trainers_that_see_one_count_of_steps_stop_by_it_and_not_by_their_own(tmp_path: Path) -> None:
    saves = JobSaves(tmp_path, Job("ranking", 0, 2))
    saves.go_back(None, {})
    saves.begin(1)
    other = TrainerProgress(tmp_path, Job("ranking", 1, 2, answer_seconds=1e-9))
    has_stopped = []
    assert not saves.is_ready(100)
    for count in (100, 101, 102):
        other.count_with(partial(int, count))
        other.step()
        has_stopped.append("missed" in (JobFolder(tmp_path).read(progress_name(1)) or {}))
    assert has_stopped == [False, False, True]


def test_save_by_hand_stops_everybody_at_once_though_a_due_save_named_a_later_step(tmp_path: Path) -> None:
    with trainer_0(tmp_path, Job("ranking", 0, 2, answer_seconds=LIMIT_SECONDS), every_steps=1) as writer:
        other = TrainerProgress(tmp_path, Job("ranking", 1, 2))
        writer.step()
        asked = JobFolder(tmp_path).read("request")

        def make_one_step() -> None:
            wait_until(lambda: JobFolder(tmp_path).read("request") != asked, "trainer 0 to be in a hurry")
            other.step()
            other.close()

        answering = threading.Thread(target=make_one_step, name="trainer-1", daemon=True)
        answering.start()
        writer.save()
        answering.join(LIMIT_SECONDS)
    assert commits(tmp_path) == 2


def test_missing_trainer_is_named_within_seconds_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    writer = due_at_every_step(tmp_path, Job("ranking", 0, 3), clock)
    TrainerProgress(tmp_path, Job("ranking", 1, 3)).close()
    writer.step()
    clock.seconds += 6
    writer.step()
    writer.step()
    said = [text for text in caplog.messages if "are missing" in text]
    assert len(said) == 1
    assert "trainers=2 since=20" in said[0]
    assert (writer.status.postponed, writer.status.missing_trainers) == (3, (2,))
    TrainerProgress(tmp_path, Job("ranking", 2, 3)).close()
    writer.step()
    assert (writer.status.postponed, writer.status.missing_trainers) == (3, ())
    assert "all trainers answer again trainers=2" in caplog.messages
    writer.close()
    assert commits(tmp_path) == 2


def test_trainers_are_not_stopped_again_for_one_that_stays_away(tmp_path: Path) -> None:
    clock = Clock()
    writer = due_at_every_step(tmp_path, Job("ranking", 0, 2, answer_seconds=60), clock)
    writer.step()
    first = request(tmp_path)
    clock.seconds += 61
    writer.step()
    assert JobFolder(tmp_path).read("taken") == {"id": first}
    clock.seconds += 1000
    writer.step()
    assert request(tmp_path) == first
    TrainerProgress(tmp_path, Job("ranking", 1, 2)).step()
    writer.step()
    assert request(tmp_path) != first
    writer._job.release()
    writer.close()


def test_trainer_that_stopped_waiting_is_asked_again(tmp_path: Path) -> None:
    clock = Clock()
    writer = due_at_every_step(tmp_path, Job("ranking", 0, 2), clock)
    writer.step()
    other = TrainerProgress(tmp_path, Job("ranking", 1, 2, answer_seconds=1e-9))
    step_until_asked(other)
    assert not has_answered(tmp_path, 1), "its progress is no longer that of the moment when it answered"
    first = request(tmp_path)
    writer.step()
    writer.step()
    assert request(tmp_path) != first
    other.close()
    writer.step()
    writer.close()
    assert commits(tmp_path) == 2


def test_trainer_0_that_gives_no_sign_of_life_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    other = TrainerProgress(tmp_path, Job("ranking", 1, 2), clock=clock)
    other.step()
    assert not caplog.messages
    clock.seconds += 11
    other.step()
    other.step()
    assert [text.partition(",")[0] for text in caplog.messages] == ["trainer 0 gives no sign of life"]
    with trainer_0(tmp_path, Job("ranking", 0, 2)) as writer:
        clock.seconds += 30
        other.step()
        other.close()
        writer.save()
    assert len(caplog.messages) == 2
    assert "steps before trainer 0 began are not in its model steps=4" in caplog.messages[1]


def test_trainer_whose_number_another_has_taken_over_ends(tmp_path: Path) -> None:
    clock = Clock()
    writer = due_at_every_step(tmp_path, Job("ranking", 0, 2, answer_seconds=1e9), clock)
    first, second = (TrainerProgress(tmp_path, Job("ranking", 1, 2, answer_seconds=1e-9)) for _ in range(2))
    for trainer in (first, second):
        trainer.step()
        clock.seconds += 1
        writer.step()
        trainer.step()
    with pytest.raises(JobRestartedError, match="another process is trainer 1 now"):
        first.step()
    second.close()
    writer.close()


def test_trainer_whose_state_can_be_put_back_follows_a_trainer_0_that_was_started_again(
    tmp_path: Path,
) -> None:
    places = [0]
    killed = due_at_every_step(tmp_path, Job("ranking", 0, 2), Clock())
    other = TrainerProgress(tmp_path, Job("ranking", 1, 2))
    other.register_state("reader", lambda: places[-1], places.append)
    killed.step()
    places.append(1)
    answering = threading.Thread(target=step_until_asked, args=(other,), name="trainer-1", daemon=True)
    answering.start()
    wait_until(lambda: has_answered(tmp_path, 1), "the answer of trainer 1")
    killed.step()
    answering.join(LIMIT_SECONDS)
    for place in (2, 3):
        places.append(place)
        other.step()
    killed.close()
    again = due_at_every_step(tmp_path, Job("ranking", 0, 2), Clock())
    other.step()
    assert places == [0, 1, 2, 3, 1]
    assert other.resumed is not None
    assert other.resumed.step == 3
    other.close()
    again.step()
    again.close()
    assert commits(tmp_path) == 3


def test_trainer_that_was_done_at_the_last_commit_need_not_come_back(tmp_path: Path) -> None:
    job = Job("ranking", 0, 2, answer_seconds=0.1)
    with trainer_0(tmp_path, job) as writer:
        finish(TrainerProgress(tmp_path, Job("ranking", 1, 2)))
        writer.step()
    with trainer_0(tmp_path, job) as writer:
        writer.step()
    assert commits(tmp_path) == 3


def test_trainer_that_did_more_than_was_committed_must_come_back_though_it_was_done(tmp_path: Path) -> None:
    job = Job("ranking", 0, 2, answer_seconds=0.1)
    killed = due_at_every_step(tmp_path, job, Clock())
    other = TrainerProgress(tmp_path, Job("ranking", 1, 2, answer_seconds=1e-9))
    other.step()
    killed.step()
    finish(other)
    killed.close()
    with pytest.raises(CommitError, match="trainer 1 did not answer"), trainer_0(tmp_path, job) as writer:
        writer.step()


def finish(other: TrainerProgress) -> None:
    other.step()
    other.close()


def test_directory_of_another_job_is_refused(tmp_path: Path) -> None:
    trainer_0(tmp_path, Job("ranking")).close()
    before = commits(tmp_path)
    for job in (Job("ads"), None):
        with pytest.raises(ConfigurationError, match="belongs to job 'ranking'"):
            trainer_0(tmp_path, job)
    with pytest.raises(ConfigurationError, match="belongs to job 'ranking'"):
        TrainerProgress(tmp_path, Job("ads", 1, 2))
    with pytest.raises(ConfigurationError, match="belongs to job 'ranking'"):
        by_hand(tmp_path, job=Job("ads")).resume(small_model())
    assert commits(tmp_path) == before
    trainer_0(tmp_path, Job("ranking")).close()


def test_chain_without_a_job_may_become_that_of_one(tmp_path: Path) -> None:
    trainer_0(tmp_path, None).close()
    trainer_0(tmp_path, Job("ranking")).close()


@pytest.mark.parametrize("arguments", [("",), ("a/b",), ("job", 2, 2), ("job", -1, 2), ("job", 0, 1, 0.0)])
def test_bad_job_is_refused(arguments: tuple[str, int, int, float]) -> None:
    with pytest.raises(ConfigurationError):
        Job(*arguments)


def test_trainer_0_has_no_progress_apart_from_the_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="trainer 0"):
        TrainerProgress(tmp_path, Job("ranking"))
