"""The one history that counts: the newest run, back through its forks.

A run is a straight line, so a history is one stretch of positions per run: the newest run as far as it goes, the
run it forked from up to the fork, and so on. Stretches, not links, so that holes do not end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.format.position import Node, Position


@dataclass(frozen=True, slots=True)
class Lineage:
    """For each run of the history the last seq that belongs to it (None: all), the newest run first."""

    last_seqs: Mapping[int, int | None]

    def has(self, position: Position) -> bool:
        """Whether a position belongs to the history, as far back as the forks are known."""
        if position.run not in self.last_seqs:
            return False
        last = self.last_seqs[position.run]
        return last is None or position.seq <= last

    def is_abandoned(self, position: Position) -> bool:
        """Whether a position certainly does not belong to it: beyond a fork, or in a run that was passed over."""
        return bool(self.last_seqs) and position.run >= min(self.last_seqs) and not self.has(position)


def trace_lineage(newest_run: int, manifests: Iterable[Manifest]) -> Lineage:
    """The history of a run. A run's first link is the one whose parent is in another run."""
    forks: dict[int, Node] = {}
    for manifest in manifests:
        if manifest.parent is not None and manifest.parent.position.run != manifest.position.run:
            forks[manifest.position.run] = manifest.parent
    last_seqs: dict[int, int | None] = {newest_run: None}
    run = newest_run
    while run in forks:
        fork = forks[run].position
        run = fork.run
        last_seqs[run] = fork.seq
    return Lineage(last_seqs)
