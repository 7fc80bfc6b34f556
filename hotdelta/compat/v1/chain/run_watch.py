"""Whether a run of a Session is writing: what tells a save in a pause that it is between two steps."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np

from hotdelta.compat.v1.recording.step_marks import UNSEEN
from hotdelta.compat.v1.recording.training_graph import TrainingGraph
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from hotdelta.train.save.pauses import Quiet

logger = logging.getLogger(__name__)


class RunWatch:
    """Whether a run is writing. The thread that trains calls `enter` and `leave`; any thread may ask.

    Each run has a ticket, a higher one than all before it, which it shows in the graph before it writes anything. In a
    cluster that is true of the chief's own runs; the other workers train when they like.
    """

    def __init__(self, graph: TrainingGraph) -> None:
        self._marks = graph.marks
        self._is_cluster = graph.roll is not None
        self._keyed = graph.keyed
        self._ticket = 0
        self._open: int | None = None
        self._thread = 0
        self._is_said = False
        self.why_blind: str | None = None
        if self._marks is None:
            self.why_blind = "the graph was finalized before it could be marked where its runs begin to write"

    @property
    def is_cluster(self) -> bool:
        """Others train, too, and nothing tells when."""
        return self._is_cluster

    def enter(self) -> dict[Any, Any]:
        """Before a run. Returns what is to be fed to it."""
        thread = threading.get_ident()
        if self._open is not None and self._thread != thread:
            self._refuse_keys()
            self.why_blind = "several threads train in this Session"
        self._ticket += 1
        self._open, self._thread = self._ticket, thread
        # A number of Python is looked at twice by TensorFlow: every step pays for this.
        return {} if self._marks is None else {self._marks.ticket: np.int64(self._ticket)}

    def _refuse_keys(self) -> None:
        """Keys that go between the steps of one thread would go in the middle of those of another."""
        if self._keyed:
            raise ConfigurationError(
                f"several threads train embedding variable {self._keyed[0].name} in one Session",
                hint="train in one thread; TensorFlow runs the operations of a step in parallel by itself",
            )

    def leave(self) -> None:
        """After a run that did not raise. One that did is over when the next one begins."""
        self._open = None

    def quiet(self, session: Any) -> Quiet | None:
        """None while a run may be writing, or one that no hook has seen may be."""
        if self._marks is None or self.why_blind is not None:
            return None
        # In this order: a run that ends, or begins to write, in between makes two answers differ.
        begun = int(session.run(self._marks.begun))
        ticket, opened = self._ticket, self._open
        if begun == UNSEEN and not self._is_cluster:
            self._say_unseen()
            return None
        if opened is not None and (begun == UNSEEN or begun >= opened or self._marks.hidden is not None):
            return None
        steps = begun if self._marks.hidden is None else ticket
        return Quiet(steps, is_alone=not self._is_cluster)

    def _say_unseen(self) -> None:
        if self._ticket and not self._is_said:
            self._is_said = True
            event(
                logger,
                logging.INFO,
                "a save that is due waits for the next step",
                reason="something writes to what is saved, and no hook hears of it",
            )
