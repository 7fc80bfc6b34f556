"""What a loader says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hotdelta.chain import Node, Position, SignatureSpec
from loader.lag import Lag


class State(StrEnum):
    """WAITING: nothing is served, or nothing new can come; FOLLOWING: at the newest, or on the way; DEGRADED: stuck;

    PINNED: an operator, or the setting of its start, holds it at a position; STATIC: there is nothing to follow.
    """

    WAITING = "waiting"
    FOLLOWING = "following"
    DEGRADED = "degraded"
    PINNED = "pinned"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A state that is not applied, and why: in words, and as one word of a few (`update_figures.CAUSES`)."""

    node: Node
    reason: str
    cause: str


@dataclass(frozen=True, slots=True)
class RefusedManifest:
    """A file that should be a manifest and is none that can be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Condition:
    """How the following goes."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table of the served model. Of one that grows `rows` are those in use, of at most `max_rows`.

    `unknown_keys`: of a table with keys, how many were asked for that it does not have.
    """

    key: str
    rows: int
    dimensions: tuple[int, ...]
    dtype: str
    max_rows: int | None = None
    unknown_keys: int | None = None


@dataclass(frozen=True, slots=True)
class LoaderStatus:
    """One moment of a loader. Everything about the served model is None or empty while there is none."""

    state: State
    reason: str
    is_ready: bool
    model_name: str | None = None
    export_version: int | None = None
    is_incremental: bool | None = None
    signatures: Mapping[str, SignatureSpec] = field(default_factory=dict)
    node: Node | None = None
    digest: str | None = None
    """Of all that the model holds; None while it is being counted. Equal models of one state have equal digests."""
    step: int | None = None
    base_full: Position | None = None
    deltas_since_full: int = 0
    applied_at: float | None = None
    last_lag: Lag | None = None
    newest_on_disk: Position | None = None
    seconds_behind: float = 0.0
    tables: tuple[ServedTable, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    refused: tuple[RefusedManifest, ...] = ()
    pinned: Position | None = None
    are_orders_kept: bool = True
    """Whether a restart would begin with the orders that hold now."""
    commits_behind: int = 0
    held_back: int = 0
    """Commits that are there and may not be taken yet; they are not behind."""
    silent_leader: str = ""
    """Why the replica that goes ahead is not heard of; empty when it is, or there is none."""
    undo_depth: int = 0
    undo_bytes: int = 0
    undo_budget_bytes: int = 0
    updates: int = 0
    """How many were applied since the loader was started, also while no model is served."""
