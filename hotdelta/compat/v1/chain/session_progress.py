"""What the workers of a cluster have read so far, in every commit of their chief: each has a progress of its own.

The chief is trainer 0 of a `hotdelta.train.Job`, and saves; the other workers are its other trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.history.state import ChainState
from hotdelta.errors import ConfigurationError, JobRestartedError
from hotdelta.remote.publish.resuming import bring_in
from hotdelta.remote.publish.spool import to_run_directory
from hotdelta.train.bookmarks import plain
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.jobs.job import Job, start_of
from hotdelta.train.jobs.saves import JobSaves
from hotdelta.train.resume.trainer_state import StateRegistry, TrainerState
from hotdelta.train.save.pauses import TrainedBatch
from hotdelta.train.trainer_progress import TrainerProgress, committed_progress, progress_at


@dataclass(frozen=True, slots=True)
class Place:
    """How far training is, as a cut says it."""

    step: int
    trainer_state: bytes
    watermark: float | None


@dataclass(frozen=True, slots=True, eq=False)
class PlaceReader:
    """`fetches` are read together with the values of a cut; `read` makes a place of them."""

    fetches: Any
    read: Callable[[Any], Place]


class ChiefProgress:
    """The chief's own progress, and its side of a save of the whole job. Called by the thread that trains.

    `job_saves`: that side. `resumed`: its own, at the position from which the job goes on; None when there is none.
    """

    def __init__(self, checkpoint_dir: str | Path | CheckpointConfig, job: Job | None = None) -> None:
        self.run_dir = _directory_of(checkpoint_dir)
        self._job = job
        self.job_saves = JobSaves(self.run_dir, job)
        self._states = StateRegistry()
        self._has_begun = False
        self.resumed: TrainerState | None = None
        self._start = start_of(None)
        if job is not None:
            bring_in(self.run_dir)
            self.job_saves.claim()
            self._start, self.resumed = committed_progress(self.run_dir, job.trainer_id)

    def register_state(
        self, name: str, read: Callable[[], Any], restore: Callable[[Any], None] | None = None
    ) -> None:
        """As of TrainerProgress. A Session that is lost goes back to the last commit, and this with it."""
        self._states.register(name, read, restore)

    def claim(self) -> None:
        """A Session begins. Raises ConfigurationError when the directory belongs to another job."""
        self.job_saves = JobSaves(self.run_dir, self._job)
        self.job_saves.claim()

    def go_back(self, saved: ChainState | None) -> None:
        """The Session was restored to it. Raises JobRestartedError when what is registered cannot follow.

        What is committed before `job_saves.begin` has the progress that the others had there.
        """
        position = saved.node.position if saved else None
        state = progress_at(saved, 0) if saved and self._job else None
        is_elsewhere = self._has_begun or start_of(position) != self._start
        if self._job and is_elsewhere and not self._states.put_back(state.registered if state else {}):
            raise JobRestartedError(
                f"the Session went back to {start_of(position)}, and the registered state cannot follow",
                hint="give register_state a function that restores it, or start this worker again",
            )
        self._has_begun = True
        self.job_saves.go_back(position, state.trainers if state else {})

    def read(self, step: int, others: Mapping[str, Any], batch: TrainedBatch) -> Place:
        """What a cut says of it. `batch`: the last that was trained."""
        bookmark = None if batch.bookmark is None else plain(batch.bookmark)
        registered = self._states.read()
        state = TrainerState(step=step, registered=registered, trainers=others, bookmark=bookmark)
        return Place(step, state.to_json(), batch.event_time)


class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """For a worker that is not the chief: a step is made with every run, and it is done when its Session ends."""

    def __init__(self, progress: TrainerProgress) -> None:
        self._progress = progress
        self._step_tensor: Any = None

    def begin(self) -> None:
        self._step_tensor = tf.compat.v1.train.get_global_step()
        if self._step_tensor is None:
            raise ConfigurationError(
                "a worker with progress needs a global step, by which the chief says when to stop for a save",
                hint="call tf.train.get_or_create_global_step(), and give it to the optimizer",
            )

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 - as tf.train has it
        self._progress.count_with(lambda: int(session.run(self._step_tensor)))

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002 - as tf.train has it
        self._progress.step()

    def end(self, session: Any) -> None:  # noqa: ARG002 - as tf.train has it
        self._progress.close()


def job_progress(checkpoint_dir: str | Path | CheckpointConfig, job: Job) -> ChiefProgress | TrainerProgress:
    """The progress of one worker, to be given to its MonitoredTrainingSession; trainer 0 of the job is the chief.

    Raises ConfigurationError when the directory belongs to another job.
    """
    if not isinstance(job, Job):
        raise ConfigurationError(
            f"job is {job!r}", hint='make it with hotdelta.train.Job("its id", task, workers)'
        )
    return TrainerProgress(checkpoint_dir, job) if job.trainer_id else ChiefProgress(checkpoint_dir, job)


def latest_bookmark(checkpoint_dir: str | Path | CheckpointConfig) -> Any:
    """What `bookmark` was given with the last batch that the newest state of this chain has trained; None: nothing.

    Ask before the input pipeline is built, and let it begin there. Numbers, strings, or lists of them.
    """
    run_dir = _directory_of(checkpoint_dir)
    bring_in(run_dir)
    _, state = committed_progress(run_dir, 0)
    return None if state is None else state.bookmark


def _directory_of(given: str | Path | CheckpointConfig) -> Path:
    return given.run_dir if isinstance(given, CheckpointConfig) else to_run_directory(given)


def check_progress(progress: Any, *, is_chief: bool) -> None:
    """Raises ConfigurationError when this is not the progress of such a worker."""
    wanted = ChiefProgress if is_chief else TrainerProgress
    if not isinstance(progress, wanted):
        raise ConfigurationError(
            f"progress is {progress!r}, and this worker is {'the' if is_chief else 'not the'} chief",
            hint="make it with tf.train.job_progress(directory, Job(id, trainer_id, trainers)); the chief is trainer 0",
        )
