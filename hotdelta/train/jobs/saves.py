"""Trainer 0's side of a save of the whole job: ask the others, wait for their progress, let them go on.

A trainer that was asked stops after its step and waits for the cut. So when all have answered nobody trains, and the
cut, with everybody's progress in it, is one moment of the job.

Trainers may step together (their gradients are summed): then nobody can end a step that another has not begun, and all
have to stop after the same one. So a request says after how many steps; it is far enough ahead for everybody to see it.
Each counts its own steps, unless there is a count that all of them see (the global step of a cluster).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from hotdelta.chain.format.position import Position
from hotdelta.errors import CommitError, ConfigurationError
from hotdelta.logs import event
from hotdelta.train.jobs.job import (
    Job,
    JobFolder,
    Patience,
    is_of_life,
    progress_name,
    start_of,
    utc_seconds_ago,
)

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.005
LOOK_SECONDS = 0.5
LATE_SECONDS = 5.0
STEPS_AHEAD = 2
GRACE_SECONDS, LEAST_GRACE_SECONDS = 0.5, 0.01


class JobSaves:
    """Asks for one save at a time. Owned by the training thread of trainer 0; without others it does nothing.

    Who does not answer in time is not waited for again before it gives a sign of life: the others, who stop for each
    request, would wait with us. `missing` are the trainers that were said to be missing and still are.
    """

    def __init__(
        self, run_dir: Path, job: Job | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises ConfigurationError when `job` is something else."""
        if job is not None and not isinstance(job, Job):
            raise ConfigurationError(f"job is {job!r}", hint='make it with hotdelta.train.Job("its id")')
        self.missing: tuple[int, ...] = ()
        self._job = job
        self._clock = clock
        self._folder = JobFolder(run_dir)
        self._others: Collection[int] = ()
        self._life: dict[str, Any] = {}
        self._resumed: Mapping[str, Any] = {}
        self._seen: dict[str, Any] = {}
        self._next_look = 0.0
        self._asked: str | None = None
        self._steps = 0
        self._stops_at = 0
        self._has_waited = False
        self._grace_seconds = GRACE_SECONDS
        self._deadline = 0.0
        self._waiting_since: float | None = None
        self._late_seconds = LATE_SECONDS
        self._patience = Patience(LATE_SECONDS)
        self._given_up: dict[int, Any] = {}

    @property
    def has_others(self) -> bool:
        return bool(self._others)

    def claim(self) -> None:
        """Raises ConfigurationError when the directory belongs to another job."""
        self._folder.claim(self._job)

    def go_back(self, position: Position | None, trainers: Mapping[str, Any]) -> None:
        """Where the job goes on from. `trainers`: the progress of the others there, to be saved until `begin`."""
        self._life, self._resumed = {"start": start_of(position)}, dict(trainers)

    def begin(self, run: int) -> None:
        """From now on saves need the others: those that went on from there too, or from a commit of this run.

        Who trained on before this learns here that it has to go back.
        """
        self._life["run"], self._steps = run, 0
        self._others = range(1, self._job.trainers) if self._job else ()
        if not self._others:
            return
        left = self._folder.read("request")
        if left is not None:
            # Of a trainer 0 that was killed: nobody takes that cut, and who answered would wait for it, not for us.
            self._folder.write("taken", {"id": left.get("id")})
        self._show_up()

    def note_step(self) -> None:
        """A step was made."""
        self._steps += 1
        self._look()

    def _look(self) -> None:
        """Twice a second: show that this trainer is there, and see who else is."""
        if self._others and self._clock() >= self._next_look:
            self._next_look = self._clock() + LOOK_SECONDS
            found = {str(trainer): self._read(trainer).get("token") for trainer in self._others}
            if found != self._seen:
                self._seen = found
                self._show_up()
            else:
                self._folder.touch(progress_name(0))

    def is_ready(self, count: int | None = None) -> bool:
        """Asks, unless that was done, and tells whether all have answered. Does not wait for those who train.

        `count`: of the steps of the job, when all trainers see the same one.
        """
        count = self._steps if count is None else count
        missing = self._missing(count + STEPS_AHEAD)
        if missing and self._asked is not None and count >= self._stops_at and not self._has_waited:
            self._has_waited = True
            missing = self._wait_a_moment()
        self._note(missing)
        is_missed = any(self._read(trainer).get("missed") == self._asked for trainer in missing)
        if missing and self._asked is not None and (is_missed or self._clock() > self._deadline):
            self._give_up(missing)
        return not missing

    def collect(self) -> Mapping[str, Any]:
        """The progress of every other trainer, by id; waits for them. Raises CommitError, and lets them go on."""
        if "run" not in self._life:
            return self._resumed
        self._given_up.clear()
        self._deadline = self._clock() + (self._job.answer_seconds if self._job else 0.0)
        pause = threading.Event()
        if self._asked is not None and self._stops_at and self._missing():
            self._ask(0)
        while missing := self._missing():
            self._note(missing)
            self._look()
            if self._clock() > self._deadline:
                self._give_up(missing)
                raise CommitError(
                    f"trainer {_listed(missing)} did not answer",
                    hint="nothing was committed; restart the trainer, or the job: all go on from the newest commit",
                )
            pause.wait(POLL_SECONDS)
        self._note([])
        return {str(trainer): self._answer(trainer)["state"] for trainer in self._others}

    def release(self) -> None:
        """The cut is taken, or given up: the others may train on."""
        if self._asked is not None:
            self._folder.write("taken", {"id": self._asked})
            self._asked = None

    def _show_up(self) -> None:
        self._folder.write(progress_name(0), {**self._life, "seen": self._seen})

    def _wait_a_moment(self) -> list[int]:
        """Trainers that step together with this one stop now. Of those who do not, the next wait is shorter."""
        pause = threading.Event()
        for _ in range(round(self._grace_seconds / POLL_SECONDS)):
            if not self._missing():
                self._grace_seconds = GRACE_SECONDS
                return []
            pause.wait(POLL_SECONDS)
        self._grace_seconds = max(self._grace_seconds / 2, LEAST_GRACE_SECONDS)
        return self._missing()

    def _missing(self, stops_at: int = 0) -> list[int]:
        """Asks them to stop after so many steps (0: after the one that they make), unless they were asked."""
        if self._job is None or not self._others:
            return []
        if self._asked is None:
            absent = [trainer for trainer, left in self._given_up.items() if self._read(trainer) == left]
            if absent:
                return absent
            self._given_up.clear()
            self._asked, self._deadline = uuid.uuid4().hex, self._clock() + self._job.answer_seconds
            self._has_waited = False
            self._ask(stops_at)
        return [trainer for trainer in self._others if not self._answer(trainer)]

    def _ask(self, stops_at: int) -> None:
        self._stops_at = stops_at
        self._folder.write("request", {"id": self._asked, "after_steps": stops_at, **self._life})

    def _answer(self, trainer: int) -> dict[str, Any]:
        found = self._read(trainer)
        is_answer = found.get("answers") == self._asked
        return found if is_answer or self._is_done(trainer, found) else {}

    def _is_done(self, trainer: int, found: Mapping[str, Any]) -> bool:
        """Closed in this life; or before, with nothing done since the commit that this life goes on from."""
        if found.get("is_over") is not True:
            return False
        run = found.get("run")
        is_of_this = run == self._life["run"] or (
            run is None and is_of_life(self._life, found.get("start", ""))
        )
        return is_of_this or found.get("state") == self._resumed.get(str(trainer), {})

    def _read(self, trainer: int) -> dict[str, Any]:
        return self._folder.read(progress_name(trainer)) or {}

    def _give_up(self, missing: list[int]) -> None:
        left = {trainer: self._read(trainer) for trainer in missing}
        # Who was there, but did not meet us, may be asked again at once.
        self._given_up = {
            trainer: found for trainer, found in left.items() if found.get("missed") != self._asked
        }
        self.release()

    def _note(self, missing: list[int]) -> None:
        """Say who is missing when that takes long, and when it is over."""
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        waited_seconds = now - self._waiting_since
        if not missing:
            if self.missing and self._job:
                event(logger, logging.INFO, "all trainers answer again", trainers=_listed(self.missing))
                # Whose steps just take that long is not to be named at every save.
                self._late_seconds = min(2 * waited_seconds, self._job.answer_seconds)
            self.missing, self._waiting_since, self._patience = (), None, Patience(self._late_seconds)
            return
        if self._patience.is_over(waited_seconds):
            self.missing = tuple(missing)
            event(
                logger,
                logging.WARNING,
                "nothing is committed: trainers of the job are missing",
                trainers=_listed(missing),
                since=utc_seconds_ago(waited_seconds),
                seconds=waited_seconds,
                hint="start them, or restart the job: all go on from the newest commit",
            )


def _listed(trainers: Collection[int]) -> str:
    return ", ".join(map(str, trainers))
