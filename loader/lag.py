"""How long one update took from the event that taught it to the first answer that used it, stage by stage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hotdelta.chain import Manifest, Position, directory_of
from hotdelta.chain.format import names
from hotdelta.logs import event

logger = logging.getLogger(__name__)


# What an update goes through, in this order; some of it happens before its commit, and some only to some of them.
STAGES = (
    "event_to_trained",
    "trained_to_committed",
    "fetch",
    "committed_to_seen",
    "verify",
    "stage",
    "preimage",
    "sanity",
    "gate_wait",
    "apply",
    "probe",
    "first_served",
)


@dataclass(frozen=True, slots=True)
class TableChange:
    """How many rows of a table an update wrote, and, where its manifest tells, how many of its keys came and went."""

    table: str
    rows: int
    has_keys: bool = False
    keys_new: int = 0
    keys_deleted: int = 0


@dataclass(frozen=True, slots=True)
class Lag:
    """Times are seconds since the epoch, stages are milliseconds. None: not known, or has not happened."""

    position: Position
    step: int
    kind: str
    rows: int
    bytes: int
    event_at: float | None
    trained_at: float | None
    committed_at: float | None
    seen_at: float | None
    verify_ms: float
    stage_ms: float
    preimage_ms: float
    gate_wait_ms: float
    apply_ms: float
    applied_at: float
    first_served_at: float | None = None
    sanity_ms: float = 0.0
    probe_ms: float | None = None
    changes: tuple[TableChange, ...] = ()
    arrived_at: float | None = None
    """Of a commit that came from a store: when it was here. `committed_at` is when it was found there."""

    @property
    def commit_to_served_ms(self) -> float | None:
        if self.committed_at is None or self.first_served_at is None:
            return None
        return (self.first_served_at - self.committed_at) * 1000

    def log(self) -> None:
        """The one line of an update."""
        event(
            logger,
            logging.INFO,
            "update served" if self.first_served_at is not None else "update applied",
            position=self.position,
            step=self.step,
            kind=self.kind,
            rows=self.rows,
            bytes=self.bytes,
            **self._told_stages(),
        )

    def _told_stages(self) -> dict[str, float]:
        told = {f"{stage}_ms": milliseconds for stage, milliseconds in self.stages_ms().items()}
        total = self.commit_to_served_ms
        return told if total is None else {**told, "total_ms": total}

    def stages_ms(self) -> dict[str, float]:
        """Those of STAGES that are known."""
        spans = (
            _span(self.event_at, self.trained_at),
            _span(self.trained_at, self.committed_at),
            _span(self.committed_at, self.arrived_at),
            _span(self.committed_at if self.arrived_at is None else self.arrived_at, self.seen_at),
            self.verify_ms,
            self.stage_ms,
            self.preimage_ms,
            self.sanity_ms,
            self.gate_wait_ms,
            self.apply_ms,
            self.probe_ms,
            _span(self.applied_at, self.first_served_at),
        )
        return {stage: span for stage, span in zip(STAGES, spans, strict=True) if span is not None}


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000


@dataclass(slots=True)
class Stopwatch:
    """Adds up what each stage of one update takes."""

    clock: Callable[[], float]
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        start = self.clock()
        try:
            yield
        finally:
            self.add(stage, self.clock() - start)

    def add(self, stage: str, seconds: float) -> None:
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds * 1000


def lag_of(
    run_dir: Path,
    manifest: Manifest,
    watch: Stopwatch,
    *,
    seen_at: float | None,
    applied_at: float,
    changes: Sequence[TableChange],
    found_at: float | None = None,
) -> Lag:
    """The record of an update that led to `manifest`; `changes`: what it wrote of the tables that are served.

    `found_at`: when it was found where it was fetched from, if it was not made here.
    """
    here_at = _committed_at(run_dir, manifest, seen_at)
    return Lag(
        position=manifest.position,
        step=manifest.step,
        kind=str(manifest.kind),
        rows=sum(change.rows for change in changes),
        bytes=manifest.serving_bytes,
        event_at=manifest.watermark,
        trained_at=manifest.created_at,
        committed_at=here_at if found_at is None else found_at,
        arrived_at=None if found_at is None else here_at,
        seen_at=seen_at,
        verify_ms=watch.stages.get("verify", 0.0),
        stage_ms=watch.stages.get("stage", 0.0),
        preimage_ms=watch.stages.get("preimage", 0.0),
        gate_wait_ms=watch.stages.get("gate_wait", 0.0),
        apply_ms=watch.stages.get("apply", 0.0),
        applied_at=applied_at,
        sanity_ms=watch.stages.get("sanity", 0.0),
        probe_ms=watch.stages.get("probe"),
        changes=tuple(changes),
    )


def _committed_at(run_dir: Path, manifest: Manifest, seen_at: float | None) -> float | None:
    """When the manifest got its name here: its content is older by an fsync, or by the way from another machine.

    It changes once more when its temporary name goes, which may be after it was seen.
    """
    path = directory_of(run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
    try:
        changed_at = path.stat().st_ctime
    except OSError:
        return None
    return changed_at if seen_at is None else min(changed_at, seen_at)
