from __future__ import annotations

import threading
from pathlib import Path

import pytest
import tensorflow as tf

from hotdelta.chain.scan import Scanner
from hotdelta.errors import CommitError, ConfigurationError
from hotdelta.train import DeltaWriter, Job, SaveEvery, TrainerProgress, WriterOptions
from hotdelta.train.job import FOLDER, JobFolder
from tests.distributed.cluster import Cluster, wait_until
from tests.keras.small_models import by_hand, small_model

BY_HAND = WriterOptions(full=SaveEvery(), delta=SaveEvery())


def trainer_0(run_dir: Path, job: Job | None, options: WriterOptions = BY_HAND) -> DeltaWriter:
    return DeltaWriter(run_dir, {"weight": tf.Variable(0.0)}, options=options, job=job)


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
    options = WriterOptions(full=SaveEvery(), delta=SaveEvery(steps=1))
    with trainer_0(tmp_path, Job("ranking", 0, 2), options) as writer:
        other = TrainerProgress(tmp_path, Job("ranking", 1, 2))
        writer.step()
        writer.step()
        assert commits(tmp_path) == 1
        answering = threading.Thread(target=other.step, name="trainer-1")
        answering.start()
        wait_until((tmp_path / FOLDER / "trainer-1.json").exists, "the answer of trainer 1")
        assert answering.is_alive(), "it must not train on before the cut is taken"
        writer.step()
        answering.join(60)
        assert not answering.is_alive()
        other.close()
    assert commits(tmp_path) > 1
    resumed = TrainerProgress(tmp_path, Job("ranking", 1, 2)).resumed
    assert resumed is not None
    assert resumed.step == 1


def test_nobody_waits_for_the_cut_of_a_trainer_0_that_was_killed(tmp_path: Path) -> None:
    trainer_0(tmp_path, Job("ranking")).close()
    JobFolder(tmp_path).write("request", {"id": "of one that was killed", "run": 1, "start": "nothing"})
    early = TrainerProgress(tmp_path, Job("ranking", 1, 3, answer_seconds=600))
    answering = threading.Thread(target=early.step, name="trainer-1", daemon=True)
    answering.start()
    wait_until((tmp_path / FOLDER / "trainer-1.json").exists, "an answer to the dead")
    with trainer_0(tmp_path, Job("ranking", 0, 3)) as writer:
        answering.join(60)
        assert not answering.is_alive()
        late = TrainerProgress(tmp_path, Job("ranking", 2, 3, answer_seconds=600))
        late.step()
        assert not (tmp_path / FOLDER / "trainer-2.json").exists()
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
    wait_until((tmp_path / FOLDER / "trainer-1.json").exists, "an answer")
    folder.write("request", {"id": "second", "run": 1, "start": "nothing"})
    answering.join(60)
    assert not answering.is_alive()


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
