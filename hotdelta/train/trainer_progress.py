"""`TrainerProgress`: what every trainer of a job but the first has, so that its progress is in the job's commits."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.errors import ConfigurationError, JobRestartedError
from hotdelta.given_directory import to_directory
from hotdelta.logs import event
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.jobs.job import (
    Job,
    JobFolder,
    Patience,
    is_of_life,
    progress_name,
    start_of,
    utc_seconds_ago,
)
from hotdelta.train.jobs.saves import POLL_SECONDS, STEPS_AHEAD
from hotdelta.train.resume.fitting import read_trainer_state
from hotdelta.train.resume.trainer_state import StateRegistry, TrainerState

logger = logging.getLogger(__name__)

SILENT_SECONDS = 10.0


class TrainerProgress:
    """The progress of trainer 1, 2 and so on. Trainer 0 saves it with the model, in one commit.

    Call `step` after every training step: when trainer 0 saves, it waits there until the cut is taken. `resumed` is
    this trainer's progress at the position from which the whole job goes on; None when there is none.

    `step` raises JobRestartedError when the job goes on from another position than this trainer: let it end training,
    and start the trainer again. A trainer 0 that gives no sign of life is named in the log.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path | CheckpointConfig,
        job: Job,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
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
        self._lead = _Lead(self._folder, job.trainer_id, clock)
        self._clock = clock
        self._states = StateRegistry()
        self._answered = ""
        self._run_dir = run_dir
        self._start, self.resumed = committed_progress(run_dir, job.trainer_id)
        self._progress = self.resumed or TrainerState()
        self._is_announced = False
        self._calls = 0
        self._count: Callable[[], int] = lambda: self._calls

    def register_state(
        self, name: str, read: Callable[[], Any], restore: Callable[[Any], None] | None = None
    ) -> None:
        """Save what `read` returns (bytes, or JSON) with every later commit; `resumed.registered` has it then.

        `restore` takes what `read` returned. When all that is registered has one, a trainer 0 that was started again
        takes this trainer back to where it goes on, and no JobRestartedError is raised.
        """
        self._states.register(name, read, restore)

    def count_with(self, count: Callable[[], int]) -> None:
        """`count` tells how many steps the job made, as trainer 0 counts them; without it each counts its own."""
        self._count = count

    def step(self, steps: int = 1) -> None:
        """Tell that training steps were made."""
        self._calls += 1
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
        if not self._is_announced:
            self._is_announced = True
            self._write({})
        try:
            self._lead.follow(
                self._start, steps=self._progress.step - (self.resumed.step if self.resumed else 0)
            )
        except JobRestartedError:
            if not self._go_back():
                raise
        request = self._folder.read("request")
        if request is None or request["id"] == self._answered or not is_of_life(request, self._start):
            return
        stops_at = request.get("after_steps", 0)
        if stops_at and 0 < stops_at - self._count() <= STEPS_AHEAD:
            # Trainer 0 makes these steps, too, and may need this trainer for them.
            return
        self._answered = request["id"]
        if (self._folder.read("taken") or {}).get("id") == self._answered:
            # Too late for this one; but trainer 0 sees that there is somebody to ask again.
            self._write({"missed": self._answered})
            return
        self._write({"answers": self._answered})
        self._wait_for_cut()

    def _go_back(self) -> bool:
        """To the newest commit, as if this trainer had been started again. False: not all of it can be put back."""
        if self._lead.is_replaced or self._states.is_empty:
            return False
        start, state = committed_progress(self._run_dir, self._job.trainer_id)
        if state is None or not self._states.put_back(state.registered):
            return False
        lost_steps = self._progress.step - state.step
        self._start, self.resumed, self._progress, self._calls = start, state, state, 0
        self._lead.rejoin()
        event(
            logger,
            logging.WARNING,
            "trainer 0 was started again; this trainer went back with it",
            position=start,
            steps=lost_steps,
        )
        return True

    def _wait_for_cut(self) -> None:
        deadline = self._clock() + self._job.answer_seconds
        pause = threading.Event()
        while self._is_cut_awaited():
            if self._clock() > deadline:
                event(logger, logging.WARNING, "trainer 0 takes no cut; training goes on")
                # What it would save of this trainer is soon no longer true.
                self._write({"missed": self._answered})
                return
            pause.wait(POLL_SECONDS)

    def _is_cut_awaited(self) -> bool:
        """Not when trainer 0 asks for another one: who looks so late has missed what became of this."""
        ids = [(self._folder.read(name) or {}).get("id") for name in ("request", "taken")]
        return ids[0] == self._answered != ids[1]

    def _write(self, document: dict[str, Any]) -> None:
        state = self._progress.with_registered(self._states.read())
        part = {
            "token": self._lead.token,
            "start": self._start,
            "run": self._lead.run,
            "state": json.loads(state.to_json()),
            **document,
        }
        self._folder.write(progress_name(self._job.trainer_id), part)


class _Lead:
    """What one of the other trainers knows of trainer 0: which run of it this trainer belongs to, and if it is there.

    A document of trainer 0 that was there before may be that of one that was killed. It counts when it has seen this
    trainer (by `token`), or when it is new.
    """

    def __init__(self, folder: JobFolder, trainer_id: int, clock: Callable[[], float]) -> None:
        self.token = uuid.uuid4().hex
        self.run: int | None = None
        self._folder = folder
        self._trainer_id = trainer_id
        self._clock = clock
        self._found_run = self._read().get("run")
        self._is_seen = False
        self.is_replaced = False
        self._stamp = 0
        self._heard_at = clock()
        self._patience = Patience(SILENT_SECONDS)

    def follow(self, start: str, *, steps: int) -> None:
        """`steps`: that were made since `start`. Raises JobRestartedError when this trainer was left behind."""
        self._listen()
        lead = self._read()
        if not lead:
            return
        run, seen = lead["run"], lead["seen"].get(str(self._trainer_id))
        if self.run is None and (seen == self.token or run != self._found_run):
            self._require(is_of_life(lead, start), lead)
            self.run = run
            if seen != self.token and steps > 1:
                event(
                    logger, logging.WARNING, "steps before trainer 0 began are not in its model", steps=steps
                )
        self._require(self.run in (None, run), lead)
        self.is_replaced = self._is_seen and seen not in (None, self.token)
        if self.is_replaced:
            raise JobRestartedError(
                f"another process is trainer {self._trainer_id} now", hint="give every trainer its own number"
            )
        self._is_seen = seen == self.token

    def rejoin(self) -> None:
        """This trainer is where trainer 0 goes on from, now."""
        self.run, self._is_seen = self._read().get("run"), False

    def _require(self, is_ours: bool, lead: Mapping[str, Any]) -> None:
        if not is_ours:
            raise JobRestartedError(
                f"trainer 0 was started again, from {lead['start']}: what trainer {self._trainer_id} did since then is "
                "not in its model",
                hint=f"start trainer {self._trainer_id} again; it goes on from there",
            )

    def _read(self) -> dict[str, Any]:
        return self._folder.read(progress_name(0)) or {}

    def _listen(self) -> None:
        """Say it when trainer 0 gives no sign of life."""
        now, stamp = self._clock(), self._folder.stamp(progress_name(0))
        silent_seconds = now - self._heard_at
        if stamp != self._stamp:
            self._stamp, self._heard_at = stamp, now
        elif self._patience.is_over(silent_seconds):
            event(
                logger,
                logging.WARNING,
                "trainer 0 gives no sign of life, and nothing is committed without it",
                since=utc_seconds_ago(silent_seconds),
                seconds=silent_seconds,
                hint="start it, or restart the job: all go on from the newest commit",
            )


def committed_progress(run_dir: Path, trainer_id: int) -> tuple[str, TrainerState | None]:
    """The newest position, as `start_of` names it, and a trainer's progress there."""
    state = find_state(run_dir)
    if state is None:
        return start_of(None), None
    return start_of(state.node.position), progress_at(state, trainer_id)


def progress_at(saved: ChainState, trainer_id: int) -> TrainerState | None:
    leading = read_trainer_state(StateReader(saved.newest_alone()))
    if trainer_id == 0:
        return leading
    state = leading.trainers.get(str(trainer_id))
    return None if state is None else TrainerState.from_json(json.dumps(state).encode())
