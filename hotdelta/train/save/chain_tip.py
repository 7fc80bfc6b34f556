"""The tip of the chain that one run writes: what the next link follows, and which names are taken."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import HighestStep, Kind, Manifest
from hotdelta.chain.format.position import Node, Position, new_state_id
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import CommitError


@dataclass(frozen=True, slots=True)
class Link:
    """The place in the chain that a cut will take: its own node, and the one it follows (None: it starts a chain)."""

    node: Node
    parent: Node | None

    def require_parent(self) -> Node:
        """Only a full can start a chain. Raises CommitError."""
        if self.parent is None:
            raise CommitError("a delta needs a full to follow")
        return self.parent


class ChainTip:
    """Advanced by the thread that commits, asked by all: one lock guards everything in it."""

    def __init__(self, run_dir: Path, run: int, *, tip: Manifest | None, highest: HighestStep) -> None:
        """Of a run that goes on from `tip` (None: with a new chain). `highest`: the steps that names have used."""
        self.run = run
        self._run_dir = run_dir
        self._guard_tip = threading.Lock()
        self._seq = 0
        self._node = tip.node if tip else None
        self._manifest = self._path_of(tip) if tip else None
        self._base = (tip.position if tip.kind is Kind.FULL else tip.base) if tip else None
        self._highest = highest

    @property
    def node(self) -> Node | None:
        with self._guard_tip:
            return self._node

    @property
    def base(self) -> Position | None:
        """The newest full."""
        with self._guard_tip:
            return self._base

    @property
    def highest(self) -> HighestStep:
        with self._guard_tip:
            return self._highest

    def next_link(self) -> Link:
        """Its position is used up even when the commit fails: a reader may have seen it for a moment."""
        with self._guard_tip:
            self._seq += 1
            return Link(Node(Position(self.run, self._seq), new_state_id()), self._node)

    def forget(self) -> None:
        """The files of the chain are gone: the next commit has to start a new one."""
        with self._guard_tip:
            self._node = self._manifest = self._base = None

    def is_lost(self) -> bool:
        with self._guard_tip:
            return self._manifest is not None and not self._manifest.exists()

    def name_delta(self, step: int, link: Link) -> str:
        """The prefix of a delta; its step is then taken."""
        with self._guard_tip:
            is_fresh = step > self._highest.delta
            self._highest = replace(self._highest, delta=max(self._highest.delta, step))
        return names.delta_prefix(step, link.node.position, is_step_fresh=is_fresh)

    def name_full(self, step: int, link: Link) -> str:
        """The prefix of a full; its step is then taken."""
        with self._guard_tip:
            is_fresh = step > self._highest.full
            self._highest = replace(self._highest, full=max(self._highest.full, step))
        return names.full_prefix(step, link.node.position, is_step_fresh=is_fresh)

    def advance(self, manifest: Manifest) -> None:
        """It was committed. A full that closes a chain is not its tip: the delta at the same position is."""
        with self._guard_tip:
            if manifest.kind is Kind.FULL:
                self._base = manifest.position
            if manifest.kind is Kind.DELTA or manifest.parent is None:
                self._node, self._manifest = manifest.node, self._path_of(manifest)

    def _path_of(self, manifest: Manifest) -> Path:
        return directory_of(self._run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
