"""What is trained, as the engine of saving sees it: a model in this process, or the Session of a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.format.manifest import Manifest
from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.full_save import FullContent
from hotdelta.train.save.pauses import Quiet
from hotdelta.train.tables.row_values import Array


class Trained(ABC):
    """Every method is called with the lock of the engine held, but for those of the writing threads, which say so."""

    @abstractmethod
    def find_place(self) -> TrainerState:
        """How far training is: which step, and of which epoch."""

    def count_touched_rows(self) -> int:
        """How many rows are due. Asked only when the options say that it matters."""
        return 0

    def known_rows(self) -> int:
        """How many rows are known in this process to be due."""
        return 0

    @abstractmethod
    def quiet(self) -> Quiet | None:
        """By any thread. None: a step may be writing, or what is trained must be looked at before it is saved."""

    @abstractmethod
    def why_blind(self) -> str | None:
        """Why `quiet` will never tell, when it will not."""

    @abstractmethod
    def is_job_ready(self) -> bool:
        """Whether the other trainers of the job have stopped for a cut; asks them. Does not wait."""

    @abstractmethod
    def take_cut(self, quiet: Quiet | None) -> Cut | None:
        """Everything that changed, with the trainer's progress; it may wait for other trainers, and raise.

        `quiet`: training waits, and is not at the end of a step that this thread has made. None: nobody answers.
        """

    def take_closing_cut(self, quiet: Quiet | None) -> Cut | None:
        """As `take_cut`, for a full."""
        return self.take_cut(quiet)

    @abstractmethod
    def give_back(self, cut: Cut) -> None:
        """The cut was not committed: what it took is due again."""

    def undo(self, cut: Cut) -> None:
        """The cut that was taken last is no moment between two steps: it will not be written."""
        self.give_back(cut)

    @abstractmethod
    def is_news(self, cut: Cut) -> bool:
        """Whether it has anything that is not on disk."""

    @abstractmethod
    def new_full(self) -> FullContent:
        """What a full is made of that begins now. Raises CommitError."""

    @abstractmethod
    def publish(self) -> None:
        """Write what a reader needs beside the chain; it may be there already."""

    def snapshot(self) -> Mapping[str, Array]:
        """The variables that are saved whole, as of the cut that was just taken; only for a full that wants them."""
        return {}

    def complete(self, cut: Cut) -> Cut:
        """On the delta-writer thread: with the rows that are missing in it, if that is found out."""
        return cut

    @abstractmethod
    def commit_delta(self, cut: Cut, link: Link) -> Manifest:
        """On the delta-writer thread. Raises CommitError; then nothing of it is visible."""

    def read_back(self, cut: Cut, manifest: Manifest) -> Cut:  # noqa: ARG002 - for rows that are not in the cut
        """On the delta-writer thread: with the rows that others have written into its delta. Raises CommitError."""
        return cut

    @abstractmethod
    def commit_full(self, prepared: PreparedBundle, cut: Cut, link: Link) -> Manifest:
        """On the thread that writes fulls. Raises CommitError."""
