"""Which deltas go to the store as one, and that one delta, which lies in the spool until it is there.

What is folded is chosen before the first request, and durable: a restart goes on with it. Whatever may have been sent,
in whole or in part, is never folded, and no fold leads over a state that a full has.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.verification import verify
from hotdelta.chain.store.folding import fold, is_next
from hotdelta.chain.store.retention import delete, sweep
from hotdelta.errors import DamagedError, HotdeltaError
from hotdelta.logs import event

logger = logging.getLogger(__name__)

# In a spool: a chain directory of its own, of the one delta that is on its way. Nobody trains or resumes there.
DIRECTORY = ".folded"
# What deltas are folded at a time: they pass through memory.
_MOST_BYTES = 256 * 1024**2


def choose_line(
    waiting: Sequence[Manifest], fulls: Container[Position], *, max_bytes: int = _MOST_BYTES
) -> tuple[Manifest, ...]:
    """The first of the deltas that wait, and those after it that can be one with it. Pure.

    `fulls`: where there is a full, or will be: who reads it goes on from there, so a line ends there.
    """
    line, size = list(waiting[:1]), sum(manifest.total_bytes for manifest in waiting[:1])
    for manifest in waiting[1:]:
        size += manifest.total_bytes
        if line[-1].position in fulls or not is_next(line[-1], manifest) or size > max_bytes:
            break
        line.append(manifest)
    return tuple(line)


@dataclass(frozen=True, slots=True)
class Fold:
    """One delta in place of `links`."""

    manifest: Manifest
    links: tuple[Manifest, ...]


class Folds:
    """Of one spool; for the thread that publishes deltas. `directory`: where the files of `current` lie."""

    def __init__(self, run_dir: Path, *, above: int | None, disk: Disk) -> None:
        """`above`: when more deltas than this wait, they are folded until none waits behind another; None: never."""
        self.directory = run_dir / DIRECTORY
        self.current: Fold | None = None
        self._run_dir = run_dir
        self._above = above
        self._disk = disk
        self._is_catching_up = False
        # Up to here it was tried in vain.
        self._tried: Position | None = None

    def take_up(self, missing: Sequence[Manifest]) -> None:
        """After a restart: what an earlier process chose, unless it is in the store or no longer what is `missing`."""
        try:
            listing = Scanner(self.directory).scan()
            sweep(self.directory, listing, self._disk)
            for manifest in listing.manifests:
                self.current = self.current or self._find_fold(manifest, missing)
                if self.current is None or self.current.manifest is not manifest:
                    delete(self.directory, manifest, self._disk)
        except (HotdeltaError, OSError) as error:
            event(logger, logging.WARNING, "what was folded before cannot be looked at", reason=error)

    def in_place_of(
        self, waiting: Sequence[Manifest], fulls: Container[Position], *, is_begun: bool
    ) -> Manifest:
        """What to send instead of the first that waits: one delta for several, or itself.

        `is_begun`: some of it may be in the store.
        """
        head = waiting[0]
        if self.current is not None and head in self.current.links:
            return self.current.manifest
        if self._above is not None:
            self._is_catching_up = len(waiting) > (1 if self._is_catching_up else self._above)
        if is_begun or not self._is_catching_up:
            return head
        if self._tried is not None and head.position <= self._tried:
            return head
        line = choose_line(waiting, fulls)
        if len(line) > 1:
            self._fold(line)
        return self.current.manifest if self.current is not None else head

    def note_published(self, manifest: Manifest) -> int:
        """How many deltas it was folded from, 0 for one that was not folded. Its files may go."""
        if self.current is None or manifest is not self.current.manifest:
            return 0
        count = len(self.current.links)
        self._drop()
        return count

    def give_up(self) -> None:
        """Its files are damaged: its links go one by one."""
        if self.current is not None:
            self._tried = self.current.manifest.position
            self._drop()

    def _fold(self, line: tuple[Manifest, ...]) -> None:
        try:
            for manifest in line:
                verify(self._run_dir, manifest)
            self.current = Fold(fold(self._run_dir, line, self.directory, disk=self._disk), line)
        except (HotdeltaError, OSError) as error:
            self._tried = line[-1].position
            phrase = "deltas cannot be folded and go one by one"
            event(logger, logging.WARNING, phrase, deltas=len(line), until=self._tried, reason=error)
        else:
            event(
                logger,
                logging.INFO,
                "deltas folded into one",
                deltas=len(line),
                position=line[-1].position,
                bytes=self.current.manifest.total_bytes,
                bytes_of_deltas=sum(manifest.total_bytes for manifest in line),
            )

    def _find_fold(self, manifest: Manifest, missing: Sequence[Manifest]) -> Fold | None:
        """The links that it stands for, when they are the first that are missing."""
        parent = manifest.parent
        deltas = [link for link in missing if link.kind is Kind.DELTA]
        links = tuple(link for link in deltas if link.position <= manifest.position)
        if not links or links[0].parent != parent or links[-1].node != manifest.node:
            return None
        try:
            verify(self.directory, manifest)
        except DamagedError:
            return None
        return Fold(manifest, links)

    def _drop(self) -> None:
        fold, self.current = self.current, None
        if fold is not None:
            try:
                delete(self.directory, fold.manifest, self._disk)
            except (HotdeltaError, OSError) as error:
                phrase = "files of a folded delta stay in the spool for now"
                event(logger, logging.WARNING, phrase, position=fold.manifest.position, reason=error)
