"""One full checkpoint from its first chunk to its commit: what it is made of, and its states on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Protocol

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.format import names
from hotdelta.chain.format.position import Node
from hotdelta.errors import CommitError
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.background import BackgroundWorker
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.tables.row_values import Array

# Begins like every full, so that what a crash leaves of it is swept at the next start.
IN_PROGRESS_PREFIX = f"{names.FULL_STEM}in-progress"


class FullState(Enum):
    """How far a full is. COPIED: it waits for its closing cut. DONE: committed, or failed."""

    NONE = auto()
    COPYING = auto()
    COPIED = auto()
    CLOSING = auto()
    DONE = auto()


class FullContent(Protocol):
    """What a full is made of. Rows may be copied at first, and finished with what changed meanwhile."""

    def copy(self) -> None:
        """Raises CommitError."""
        ...

    def overlay(self, cut: Cut) -> None: ...

    def abandon(self) -> None:
        """Stop copying as soon as possible."""
        ...

    def discard(self) -> None:
        """Remove the files. Not while another thread is copying or finishing."""
        ...

    def finish(
        self, *, values: Mapping[str, Array], closing: Cut, node: Node, parent: Node | None
    ) -> PreparedBundle:
        """Durable, with everything up to the closing cut. `values` are as of that cut. Raises CommitError."""
        ...


class FullSave:
    """A full in the making, from state to state.

    Made, overlaid and polled by the training thread. It is closed by whichever thread knows that the closing delta is
    committed; copying and finishing are jobs of `worker`.
    """

    def __init__(self, content: FullContent, worker: BackgroundWorker) -> None:
        self.error: CommitError | None = None
        self.is_closing = False
        self._content = content
        self._worker = worker
        self._copied = threading.Event()
        self._done = threading.Event()

    @property
    def state(self) -> FullState:
        if self._done.is_set():
            return FullState.DONE
        if self.is_closing:
            return FullState.CLOSING
        return FullState.COPIED if self._copied.is_set() else FullState.COPYING

    def start_copying(self) -> None:
        self._worker.submit(self.copy)

    def copy(self) -> None:
        try:
            self._content.copy()
        except CommitError as error:
            self.fail(error)
        self._copied.set()

    def overlay(self, cut: Cut, *, is_closing: bool) -> None:
        """Every cut that is taken before the full is closed, the closing one included."""
        self._content.overlay(cut)
        self.is_closing = is_closing

    def overlay_again(self, cut: Cut) -> None:
        """The last cut with rows that were missing in it; on the delta-writer thread, before the full is closed."""
        self._content.overlay(cut)

    def close(
        self, cut: Cut, link: Link, values: Mapping[str, Array], commit: Callable[[PreparedBundle], None]
    ) -> None:
        """Finish and commit in the background; `values` are the other variables as of the closing cut."""

        def finish() -> None:
            if self.error is not None:
                return
            try:
                commit(self._content.finish(values=values, closing=cut, node=link.node, parent=link.parent))
            except CommitError as error:
                self.fail(error)
            self._done.set()

        if self.error is None:
            self._worker.submit(finish)

    def fail(self, error: CommitError) -> None:
        self.error = error
        self._content.discard()
        self._done.set()

    def fail_later(self, error: CommitError) -> None:
        """From a thread that does not know whether rows are being copied: after that, on the thread that copies."""
        self._worker.submit(lambda: self.fail(error))

    def drop(self) -> None:
        """Give it up, unless it is being closed already; then wait for that."""
        if not self.is_closing:
            self._content.abandon()
        self._worker.wait()
        if self.state is not FullState.DONE:
            self.fail(CommitError("the full was given up"))
