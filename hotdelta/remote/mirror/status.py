"""What a mirror says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain.format.position import Position


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """One moment of a mirror. `answered_at`: seconds since the epoch, None before the store ever answered.

    `problem`: why the last request failed, or what cannot be brought; empty when all is well.
    """

    address: str
    directory: Path
    is_reached: bool = False
    answered_at: float | None = None
    problem: str = ""
    newest: Position | None = None
    fetched_bytes: int = 0
    fetched_commits: int = 0
    fetched_exports: int = 0
    local_bytes: int = 0
    failures: int = 0
    damaged: tuple[str, ...] = ()
