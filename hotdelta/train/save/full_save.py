"""One full checkpoint from its first chunk to its commit, on a thread of its own, while deltas go on being written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.errors import CommitError
from hotdelta.train.rows.cut import Cut
from hotdelta.train.rows.trackers import Trackers
from hotdelta.train.save.background import BackgroundWorker
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.full_builder import FullBuilder
from hotdelta.train.tables.row_values import Array

# Begins like every full, so that what a crash leaves of it is swept at the next start.
IN_PROGRESS_PREFIX = f"{names.FULL_STEM}in-progress"


class FullSave:
    """A full in the making: copying, then ready for its closing cut, then closed, then done or failed.

    Made, overlaid and polled by the training thread. It is closed by whichever thread knows that the closing delta is
    committed; copying and finishing happen on `worker`.
    """

    def __init__(
        self,
        run_dir: Path,
        trackers: Trackers,
        *,
        trainer_state_bytes: int,
        disk: Disk,
        worker: BackgroundWorker,
    ) -> None:
        """Raises CommitError when the files cannot be made."""
        self.error: CommitError | None = None
        self.is_closing = False
        self._trackers = trackers
        self._worker = worker
        self._copied = threading.Event()
        self._done = threading.Event()
        self._builder = FullBuilder(
            run_dir,
            IN_PROGRESS_PREFIX,
            variables=trackers.variables,
            on_servers=trackers.keys_on_servers(),
            trainer_state_bytes=trainer_state_bytes,
            disk=disk,
        )

    @property
    def wants_closing_cut(self) -> bool:
        return self._copied.is_set() and not self.is_closing and self.error is None

    @property
    def is_done(self) -> bool:
        """Nothing more will happen to it: committed, or failed with `error`."""
        return self._done.is_set()

    def start_copying(self) -> None:
        self._worker.submit(self.copy)

    def copy(self) -> None:
        try:
            self._builder.copy(self._trackers.tables)
        except CommitError as error:
            self.fail(error)
        self._copied.set()

    def overlay(self, cut: Cut, *, is_closing: bool) -> None:
        """Every cut that is taken before the full is closed, the closing one included."""
        self._builder.overlay(cut)
        self.is_closing = is_closing

    def overlay_again(self, cut: Cut) -> None:
        """The last cut with rows that were missing in it; on the delta-writer thread, before the full is closed."""
        self._builder.overlay(cut)

    def close(
        self, cut: Cut, link: Link, values: Mapping[str, Array], commit: Callable[[PreparedBundle], None]
    ) -> None:
        """Finish and commit in the background; `values` are the other variables as of the closing cut."""

        def finish() -> None:
            if self.error is not None:
                return
            try:
                commit(self._builder.finish(values=values, closing=cut, node=link.node, parent=link.parent))
            except CommitError as error:
                self.fail(error)
            self._done.set()

        if self.error is None:
            self._worker.submit(finish)

    def fail(self, error: CommitError) -> None:
        self.error = error
        self._builder.discard()
        self._done.set()

    def fail_later(self, error: CommitError) -> None:
        """From a thread that does not know whether rows are being copied: after that, on the thread that copies."""
        self._worker.submit(lambda: self.fail(error))

    def drop(self) -> None:
        """Give it up, unless it is being closed already; then wait for that."""
        if not self.is_closing:
            self._builder.abandon()
        self._worker.wait()
        if not self.is_done:
            self.fail(CommitError("the full was given up"))
