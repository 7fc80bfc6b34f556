"""A job of several trainers that save together: who belongs to it, and the files by which they agree.

The directory belongs to one job, by its id. Trainer 0 saves the model; what the others leave here is their progress,
which becomes part of trainer 0's commit and means nothing by itself.

| file | written by | says |
|---|---|---|
| `job` | the first trainer | the id of the job that the directory belongs to |
| `trainer-0` | trainer 0 | its run, the position that it went on from, whom it has seen; touched while it trains |
| `trainer-N` | trainer N | its place, its progress, and which request that answers |
| `request`, `taken` | trainer 0 | for which cut all are to stop, and which cut is over |
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdelta.chain.format.position import Position
from hotdelta.errors import ConfigurationError

FOLDER = ".trainers"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Job:
    """One trainer's place in its job. `answer_seconds`: how long trainers wait for each other at a save."""

    job_id: str
    trainer_id: int = 0
    trainers: int = 1
    answer_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not _JOB_ID.fullmatch(self.job_id):
            raise ConfigurationError(
                f"job id {self.job_id!r} is not usable", hint="use letters, digits, dots, dashes; at most 100"
            )
        if not 0 <= self.trainer_id < self.trainers:
            raise ConfigurationError(
                f"trainer {self.trainer_id} of {self.trainers}", hint="trainers are counted from 0"
            )
        if not self.answer_seconds > 0:
            raise ConfigurationError(f"answer_seconds is {self.answer_seconds}", hint="give seconds above 0")


class JobFolder:
    """Small JSON documents in the checkpoint directory, each written by one trainer and replaced as a whole."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._folder = run_dir / FOLDER

    def claim(self, job: Job | None) -> None:
        """Raises ConfigurationError when the directory is another job's, or a job's and none is given."""
        owner = self.read("job")
        if owner is None:
            if job is not None:
                self._create("job", {"job_id": job.job_id})
                self.claim(job)
            return
        if job is None or owner.get("job_id") != job.job_id:
            raise ConfigurationError(
                f"{self._run_dir} belongs to job {owner.get('job_id')!r}",
                hint="give every job a directory of its own; trainers of one job pass the same Job(job_id)",
            )

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self._folder / f"{name}.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def write(self, name: str, document: dict[str, Any]) -> None:
        temporary = self._draft(name, document)
        temporary.replace(self._folder / f"{name}.json")

    def touch(self, name: str) -> None:
        """A sign of life: who looks at the `stamp` of the document sees that its writer is still there."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._folder / f"{name}.json")

    def stamp(self, name: str) -> int:
        try:
            return (self._folder / f"{name}.json").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _create(self, name: str, document: dict[str, Any]) -> None:
        """Only when it is not there: of two jobs that start at once, one is first."""
        temporary = self._draft(name, document)
        try:
            os.link(temporary, self._folder / f"{name}.json")
        except FileExistsError:
            pass
        finally:
            temporary.unlink()

    def _draft(self, name: str, document: dict[str, Any]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{name}.{os.getpid()}"
        with temporary.open("w") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        return temporary


class Patience:
    """When to speak of somebody who is waited for: after a while, and again each time the wait has doubled."""

    def __init__(self, seconds: float) -> None:
        self._due_seconds = seconds

    def is_over(self, waited_seconds: float) -> bool:
        if waited_seconds < self._due_seconds:
            return False
        self._due_seconds = 2 * waited_seconds
        return True


def utc_seconds_ago(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


def progress_name(trainer_id: int) -> str:
    return f"trainer-{trainer_id}"


def start_of(position: Position | None) -> str:
    """Names the life of a job: all its trainers went on from this position."""
    return str(position) if position is not None else "nothing"


def is_of_life(life: Mapping[str, Any], start: str) -> bool:
    """Whether a trainer that went on from `start` is one of the job's present life, and not of an earlier one."""
    return start == life.get("start") or start.partition(".")[0] == str(life.get("run"))
