"""`TrainerProgress`: what every trainer of a job but the first has, so that its progress is in the job's commits."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hotdelta.chain.scan import Scanner
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.given_directory import to_directory
from hotdelta.train.job import Job, JobFolder, progress_name, start_of
from hotdelta.train.job_saves import POLL_SECONDS, is_of_life
from hotdelta.train.resume import ResumePoint, ResumeReader, find_resume_point
from hotdelta.train.trainer_state import StateRegistry, TrainerState

logger = logging.getLogger(__name__)


class TrainerProgress:
    """The progress of trainer 1, 2 and so on. Trainer 0 saves it with the model, in one commit.

    Call `step` after every training step: when trainer 0 saves, it waits there until the cut is taken. `resumed` is
    this trainer's progress at the position from which the whole job goes on; None when there is none.
    """

    def __init__(self, checkpoint_dir: str | Path | CheckpointConfig, job: Job) -> None:
        """Raises ConfigurationError when the directory belongs to another job."""
        if job.trainer_id == 0:
            raise ConfigurationError(
                "trainer 0 saves the model", hint="give its job to DeltaWriter or DeltaCheckpoint"
            )
        run_dir = (
            checkpoint_dir.run_dir
            if isinstance(checkpoint_dir, CheckpointConfig)
            else to_directory(checkpoint_dir)
        )
        self._job = job
        self._folder = JobFolder(run_dir)
        self._folder.claim(job)
        self._states = StateRegistry()
        self._answered = ""
        point = find_resume_point(run_dir, Scanner(run_dir).scan())
        self._start = start_of(point.node.position if point else None)
        self.resumed = _saved_progress(run_dir, point, job.trainer_id) if point else None
        self._progress = self.resumed or TrainerState()

    def register_state(self, name: str, read: Callable[[], Any]) -> None:
        """Save what `read` returns (bytes, or JSON) with every later commit; `resumed.registered` has it then."""
        self._states.register(name, read)

    def step(self, steps: int = 1) -> None:
        """Tell that training steps were made."""
        self._progress = self._progress.after_steps(steps)
        self._answer()

    def end_epoch(self, epoch: int) -> None:
        self._progress = self._progress.after_epoch(epoch)
        self._answer()

    def close(self) -> None:
        """This trainer is done: its last progress goes into every later commit."""
        self._write({"is_over": True})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an exception it is not done: trainer 0 must not go on saving as if it were."""
        if error is None:
            self.close()

    def _answer(self) -> None:
        request = self._folder.read("request")
        if request is None or request["id"] == self._answered or not is_of_life(request, self._start):
            return
        self._answered = request["id"]
        if (self._folder.read("taken") or {}).get("id") == self._answered:
            return
        self._write({"answers": self._answered})
        self._wait_for_cut()

    def _wait_for_cut(self) -> None:
        deadline = time.monotonic() + self._job.answer_seconds
        pause = threading.Event()
        while self._is_cut_awaited():
            if time.monotonic() > deadline:
                event(logger, logging.WARNING, "trainer 0 takes no cut; training goes on")
                return
            pause.wait(POLL_SECONDS)

    def _is_cut_awaited(self) -> bool:
        """Not when trainer 0 asks for another one: who looks so late has missed what became of this."""
        ids = [(self._folder.read(name) or {}).get("id") for name in ("request", "taken")]
        return ids[0] == self._answered != ids[1]

    def _write(self, document: dict[str, Any]) -> None:
        state = self._progress.with_registered(self._states.read())
        part = {"start": self._start, "state": json.loads(state.to_json()), **document}
        self._folder.write(progress_name(self._job.trainer_id), part)


def _saved_progress(run_dir: Path, point: ResumePoint, trainer_id: int) -> TrainerState | None:
    with ResumeReader(run_dir, point) as reader:
        state = reader.trainer_state().trainers.get(str(trainer_id))
    return None if state is None else TrainerState.from_json(json.dumps(state).encode())
