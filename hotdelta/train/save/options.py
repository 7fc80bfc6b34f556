"""What a writer is told, and what it tells: options, where it resumed, and its counters. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory
from hotdelta.remote.publish.figures import PublishFigures
from hotdelta.remote.publish.spool import SpoolOptions
from hotdelta.train.save.schedule import SaveEvery, SavePolicy

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Telling:
    """Who is told how saving goes.

    Prometheus asks at `metrics_port`, a port of loopback or "HOST:PORT", or whoever the program tells of a
    `metrics_registry` of prometheus_client; TensorBoard reads `tensorboard_dir`.
    """

    metrics_port: int | str | None = None
    metrics_registry: Any = None
    tensorboard_dir: Path | None = None

    def __post_init__(self) -> None:
        if self.metrics_port is not None:
            self._parse()
        if not hasattr(self.metrics_registry, "register") and self.metrics_registry is not None:
            raise ConfigurationError(
                f"metrics_registry is {self.metrics_registry!r}", hint="give one of prometheus_client"
            )

    @classmethod
    def of(
        cls, metrics_port: int | str | None, metrics_registry: Any, tensorboard_dir: str | Path | None
    ) -> Telling:
        """As users say it. Raises ConfigurationError."""
        directory = None if tensorboard_dir is None else to_directory(tensorboard_dir).absolute()
        return cls(metrics_port, metrics_registry, directory)

    @property
    def address(self) -> tuple[str, int]:
        """Of `metrics_port`."""
        host, port = self._parse()
        return host.strip("[]") or _LOOPBACK, port

    def _parse(self) -> tuple[str, int]:
        host, _, port = str(self.metrics_port).rpartition(":")
        if isinstance(self.metrics_port, bool) or not (
            port.isascii() and port.isdigit() and int(port) < 2**16
        ):
            raise ConfigurationError(
                f"metrics_port is {self.metrics_port!r}", hint='give a port, or an address as "0.0.0.0:9100"'
            )
        return host, int(port)


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """When to save and what to keep. `scrub_saves`: every row is checked once within so many deltas; 0 is never."""

    full: SavePolicy = SaveEvery(seconds=600)
    delta: SavePolicy = SaveEvery(seconds=5)
    keep_fulls: int = 5
    scrub_saves: int = 128
    telling: Telling = field(default_factory=Telling)
    spool: SpoolOptions = field(default_factory=SpoolOptions)

    def __post_init__(self) -> None:
        if not _is_count(self.keep_fulls, 1):
            raise ConfigurationError(f"cannot keep {self.keep_fulls!r} fulls", hint="keep at least 1")
        if not _is_count(self.scrub_saves, 0):
            raise ConfigurationError(f"scrub_saves is {self.scrub_saves!r}", hint="give 0 (never) or more")

    @classmethod
    def of(
        cls,
        *,
        save_secs: float | None,
        save_incremental_secs: float | None,
        save_steps: int | None,
        save_incremental_steps: int | None,
        save_epochs: int | None,
        save_incremental_epochs: int | None,
        save_incremental_touched_rows: int | None,
        keep_fulls: int,
        scrub_saves: int,
        telling: Telling,
        spool: SpoolOptions,
    ) -> WriterOptions:
        """As users say it to the callback and to the writer of a loop."""
        return cls(
            full=SaveEvery(seconds=save_secs, steps=save_steps, epochs=save_epochs),
            delta=SaveEvery(
                seconds=save_incremental_secs,
                steps=save_incremental_steps,
                epochs=save_incremental_epochs,
                touched_rows=save_incremental_touched_rows,
            ),
            keep_fulls=keep_fulls,
            scrub_saves=scrub_saves,
            telling=telling,
            spool=spool,
        )


def _is_count(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


@dataclass(slots=True)
class WriterStatus:
    """Counters, for people and for tests. Written by one thread each, read by any.

    `postponed`: how often a save that was due had to wait, for the one before it or for trainers of the job;
    `missing_trainers`: those that keep everybody waiting. `publishing`: what of it is in the store, when the directory
    was given as the address of one.
    """

    deltas: int = 0
    fulls: int = 0
    failures: int = 0
    postponed: int = 0
    missing_trainers: tuple[int, ...] = ()
    rows_unrecorded: int = 0
    last_error: str = ""
    last_stall_seconds: float = 0.0
    longest_stall_seconds: float = 0.0
    publishing: PublishFigures | None = None
