"""Trainer 0's side of a save of the whole job: ask the others, wait for their progress, let them go on.

A trainer that was asked stops after its step and waits for the cut. So when all have answered nobody trains, and the
cut, with everybody's progress in it, is one moment of the job.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hotdelta.chain.position import Position
from hotdelta.errors import CommitError, ConfigurationError
from hotdelta.train.job import Job, JobFolder, progress_name, start_of

POLL_SECONDS = 0.005


class JobSaves:
    """Asks for one save at a time. Owned by the training thread of trainer 0; without others it does nothing."""

    def __init__(self, run_dir: Path, job: Job | None) -> None:
        """Raises ConfigurationError when `job` is something else."""
        if job is not None and not isinstance(job, Job):
            raise ConfigurationError(f"job is {job!r}", hint='make it with hotdelta.train.Job("its id")')
        self._job = job
        self._folder = JobFolder(run_dir)
        self._others: Collection[int] = ()
        self._life: dict[str, Any] = {}
        self._asked: str | None = None

    def claim(self) -> None:
        """Raises ConfigurationError when the directory belongs to another job."""
        self._folder.claim(self._job)

    def begin(self, run: int, resumed: Position | None) -> None:
        """From now on saves need the others: those that went on from `resumed`, or from a commit of this run."""
        self._life = {"run": run, "start": start_of(resumed)}
        self._others = range(1, self._job.trainers) if self._job else ()
        left = self._folder.read("request")
        if self._others and left is not None:
            # Of a trainer 0 that was killed: nobody takes that cut, and who answered would wait for it, not for us.
            self._folder.write("taken", {"id": left.get("id")})

    def is_ready(self) -> bool:
        """Asks, unless that was done, and tells whether all have answered. Does not wait."""
        return not self._missing()

    def collect(self) -> Mapping[str, Any]:
        """The progress of every other trainer, by id; waits for them. Raises CommitError, and lets them go on."""
        deadline = time.monotonic() + (self._job.answer_seconds if self._job else 0)
        pause = threading.Event()
        while missing := self._missing():
            if time.monotonic() > deadline:
                self.release()
                raise CommitError(
                    f"trainer {', '.join(map(str, missing))} did not answer",
                    hint="nothing was committed; restart the trainer, or the job: all go on from the newest commit",
                )
            pause.wait(POLL_SECONDS)
        return {str(trainer): self._answer(trainer)["state"] for trainer in self._others}

    def release(self) -> None:
        """The cut is taken, or given up: the others may train on."""
        if self._asked is not None:
            self._folder.write("taken", {"id": self._asked})
            self._asked = None

    def _missing(self) -> list[int]:
        if not self._others:
            return []
        if self._asked is None:
            self._asked = uuid.uuid4().hex
            self._folder.write("request", {"id": self._asked, **self._life})
        return [trainer for trainer in self._others if not self._answer(trainer)]

    def _answer(self, trainer: int) -> dict[str, Any]:
        found = self._folder.read(progress_name(trainer)) or {}
        is_answer = found.get("answers") == self._asked
        is_over = found.get("is_over") is True and is_of_life(self._life, found.get("start", ""))
        return found if is_answer or is_over else {}


def is_of_life(life: Mapping[str, Any], start: str) -> bool:
    """Whether a trainer that went on from `start` is one of the job's present life, and not of an earlier one."""
    return start == life.get("start") or start.partition(".")[0] == str(life.get("run"))
