"""One trainer's hold on a checkpoint directory: its lock, its run number, the tip of its chain, and its commits.

When the directory is the spool of a store, whatever is committed is told to its publisher, and stays until it is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import HighestStep, Kind, Manifest, TableRecord
from hotdelta.chain.format.position import Node, Position
from hotdelta.chain.history.scan import Listing, Scanner
from hotdelta.chain.history.signing import SigningKey
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store.commit import commit
from hotdelta.chain.store.lock import TrainerLock, claim_run, next_run
from hotdelta.chain.store.retention import delete, expired, sweep
from hotdelta.errors import CommitError
from hotdelta.logs import event
from hotdelta.remote.publish.figures import PublishFigures
from hotdelta.remote.publish.publisher import Publisher, open_publisher
from hotdelta.remote.publish.spool import MOST_FULLS
from hotdelta.train.model.variables import OtherVariable
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.chain_tip import ChainTip, Link
from hotdelta.train.save.delta_bundle import write_delta

logger = logging.getLogger(__name__)


class ChainWriter:
    """Commits deltas and fulls as one run.

    `commit_delta` runs on the delta-writer thread and `commit_full` on the full-writer thread; all else belongs to
    the training thread, which asks for the next link only while no delta is being written.
    """

    def __init__(self, run_dir: Path, *, keep_fulls: int, disk: Disk) -> None:
        self.run_dir = run_dir
        self.disk = disk
        self._keep_fulls = keep_fulls
        self._lock = TrainerLock(run_dir)
        self._scanner = Scanner(run_dir)
        self._guard_directory = threading.Lock()
        self._tip = ChainTip(run_dir, 0, tip=None, highest=HighestStep())
        self._key = SigningKey.from_environment()
        self._publisher: Publisher | None = None

    def open(self) -> Listing:
        """Take the directory for this process.

        Raises DirectoryBusyError when another trainer has it, ConfigurationError when it is a spool and was given by
        its path.
        """
        self._lock.acquire()
        if self._publisher is None:
            try:
                self._publisher = open_publisher(self.run_dir, keep_fulls=self._keep_fulls)
            except BaseException:
                self._lock.release()
                raise
        return self._scanner.scan()

    def begin_run(self, listing: Listing, tip: Manifest | None) -> None:
        """Start a new run that goes on from `tip` (None: with a new chain). Removes what a crash left behind.

        Raises StoreError when the number of a new chain cannot be had from the store of a spool.
        """
        removed = sweep(self.run_dir, listing, self.disk)
        if removed:
            event(logger, logging.INFO, "removed files of an unfinished save", files=len(removed))
        manifests = listing.manifests
        highest = HighestStep(
            full=max([_highest_foreign_step(self.run_dir), *(m.highest_step.full for m in manifests)]),
            delta=max((manifest.highest_step.delta for manifest in manifests), default=-1),
        )
        run = self._claim_run(manifests, may_begin_alone=tip is not None)
        self._tip = ChainTip(self.run_dir, run, tip=tip, highest=highest)
        if self._publisher is not None:
            self._publisher.begin(manifests, tip.node if tip else None)

    def _claim_run(self, manifests: Sequence[Manifest], *, may_begin_alone: bool) -> int:
        """In the store first, where other machines claim theirs."""
        if self._publisher is None:
            return claim_run(self.run_dir, manifests, self.disk)
        least = next_run(self.run_dir, manifests)
        while True:
            wanted = self._publisher.claim_run(least, may_begin_alone=may_begin_alone)
            least = claim_run(self.run_dir, manifests, self.disk, least=wanted)
            if least == wanted:
                return wanted

    def close(self) -> None:
        """Waits until everything is published, bounded. Raises UnpublishedError, and lets the directory go."""
        publisher, self._publisher = self._publisher, None
        try:
            if publisher is not None:
                publisher.close()
        finally:
            self._lock.release()

    def give_up(self) -> None:
        """Before `close`, when training does not begin: nothing is waited for."""
        if self._publisher is not None:
            self._publisher.stop()
            self._publisher = None

    @property
    def publishing(self) -> PublishFigures | None:
        """What the publisher of a spool has come to; None: the directory is none."""
        return self._publisher.figures if self._publisher is not None else None

    @property
    def is_spool_full(self) -> bool:
        return self._publisher is not None and self._publisher.is_spool_full

    @property
    def waits_for_room(self) -> bool:
        """Whether training is to wait while the spool is full."""
        return self._publisher is not None and self._publisher.waits_for_room

    def wait_for_room(self, is_over: Callable[[], bool]) -> None:
        if self._publisher is not None:
            self._publisher.wait_for_room(is_over)

    def require_current(self) -> None:
        """Every step asks. Raises SupersededError when another trainer took the chain over."""
        if self._publisher is not None:
            self._publisher.require_current()

    def take_wish_for_full(self) -> bool:
        """Whether readers of the store need a full, because a delta could not be published."""
        return self._publisher is not None and self._publisher.take_wish_for_full()

    def wait_until_published(self) -> None:
        """Bounded. Raises UnpublishedError, SupersededError."""
        if self._publisher is not None:
            self._publisher.wait()

    @property
    def run(self) -> int:
        return self._tip.run

    @property
    def tip(self) -> Node | None:
        return self._tip.node

    def next_link(self) -> Link:
        """The link for the next cut. A full and its closing delta share one."""
        return self._tip.next_link()

    def expect_full(self, link: Link) -> None:
        """A full is closed by the delta of this link, which is not committed yet."""
        if self._publisher is not None:
            self._publisher.expect_full(link.node.position)

    def forget_tip(self) -> None:
        """The files of the chain are gone: the next commit has to start a new one."""
        self._tip.forget()

    def is_tip_lost(self) -> bool:
        return self._tip.is_lost()

    def is_directory_lost(self) -> bool:
        return not directory_of(self.run_dir, Kind.DELTA).exists()

    def reclaim_directory(self) -> None:
        """Make the directory and its lock again after somebody removed them."""
        self._lock.release()
        self._lock.acquire()

    def commit_delta(
        self,
        cut: Cut,
        link: Link,
        *,
        others: tuple[OtherVariable, ...],
        schema: str,
        tables: Mapping[str, TableRecord],
    ) -> Manifest:
        """Raises CommitError; then nothing of it is visible and the tip is what it was."""
        directory, parent = directory_of(self.run_dir, Kind.DELTA), link.require_parent()
        prefix, base = self._tip.name_delta(cut.step, link), self._tip.base
        prepared = write_delta(
            directory, prefix, cut, others=others, node=link.node, parent=parent, disk=self.disk
        )
        return self._commit_delta(prepared, cut, link, base=base, schema=schema, tables=tables)

    def commit_prepared_delta(
        self,
        prepared: PreparedBundle,
        cut: Cut,
        link: Link,
        *,
        schema: str,
        tables: Mapping[str, TableRecord],
    ) -> Manifest:
        """Commit a delta that others wrote, under the name of its step. Raises CommitError as `commit_delta`."""
        link.require_parent()
        prefix, base = self._tip.name_delta(cut.step, link), self._tip.base
        return self._commit_delta(
            prepared.renamed(prefix), cut, link, base=base, schema=schema, tables=tables
        )

    def _commit_delta(
        self,
        prepared: PreparedBundle,
        cut: Cut,
        link: Link,
        *,
        base: Position | None,
        schema: str,
        tables: Mapping[str, TableRecord],
    ) -> Manifest:
        manifest = self._manifest(Kind.DELTA, prepared, cut, link, base=base, schema=schema, tables=tables)
        with self._guard_directory:
            commit(prepared, manifest, disk=self.disk)
        self._note_commit(manifest)
        return manifest

    def commit_full(
        self,
        prepared: PreparedBundle,
        cut: Cut,
        link: Link,
        *,
        schema: str,
        tables: Mapping[str, TableRecord],
    ) -> Manifest:
        """Commit a finished full under the name of its step, then delete what is no longer to be kept."""
        prepared = prepared.renamed(self._tip.name_full(cut.step, link))
        base = link.node.position
        manifest = self._manifest(Kind.FULL, prepared, cut, link, base=base, schema=schema, tables=tables)
        with self._guard_directory:
            commit(prepared, manifest, disk=self.disk)
        self._note_commit(manifest)
        self._delete_expired()
        return manifest

    def _note_commit(self, manifest: Manifest) -> None:
        self._tip.advance(manifest)
        if self._publisher is not None:
            self._publisher.committed(manifest)

    def _manifest(
        self,
        kind: Kind,
        prepared: PreparedBundle,
        cut: Cut,
        link: Link,
        *,
        base: Position | None,
        schema: str,
        tables: Mapping[str, TableRecord],
    ) -> Manifest:
        manifest = Manifest(
            kind=kind,
            position=link.node.position,
            state_id=link.node.state_id,
            parent=link.parent,
            base=base,
            prefix=prepared.prefix,
            step=cut.step,
            created_at=cut.trained_at,
            schema=schema,
            tables=tables,
            files=prepared.files,
            highest_step=self._tip.highest,
            watermark=cut.watermark,
        )
        return self._key.sign(manifest) if self._key else manifest

    def _delete_expired(self) -> None:
        """Deleting is housekeeping: a failure is logged and tried again after the next full."""
        with self._guard_directory:
            try:
                gone = self._expired()
                for manifest in gone:
                    delete(self.run_dir, manifest, self.disk)
            except (OSError, CommitError) as error:
                event(logger, logging.WARNING, "old checkpoints could not be deleted", reason=error)
                return
        if gone:
            event(logger, logging.INFO, "old checkpoints deleted", commits=len(gone))

    def _expired(self) -> Sequence[Manifest]:
        """A spool keeps what resuming needs and what is not published; its store keeps as many fulls as are wanted."""
        manifests = self._scanner.scan().manifests
        if self._publisher is None:
            return expired(manifests, keep_fulls=self._keep_fulls)
        gone = expired(manifests, keep_fulls=min(self._keep_fulls, MOST_FULLS))
        return self._publisher.published_of(gone)


def _highest_foreign_step(run_dir: Path) -> int:
    """A tf.train.Saver may have written here before us: its names are taken. -1 when there are none."""
    steps = [
        path.name[len(names.FULL_STEM) : -len(".index")] for path in run_dir.glob(f"{names.FULL_STEM}*.index")
    ]
    return max((int(step) for step in steps if step.isascii() and step.isdigit()), default=-1)
