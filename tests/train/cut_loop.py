"""Cuts beside training, one after the other, as `hotdelta-pauses` takes them: each is looked at and given back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from hotdelta.train.rows.cut import Cut
from hotdelta.train.save.chain_trainer import ChainTrainer

# A cut in plain words: everything that it says of how many steps are in it.
Facts = dict[str, float]


class CutLoop:
    """A thread that cuts until the block ends. `mixed`: what the cuts said that are of no one step."""

    def __init__(
        self, trainer: ChainTrainer, read: Callable[[Cut, dict[str, Any]], Facts], *, is_watched: bool = True
    ) -> None:
        """`read`: how many steps each part of a cut, and of its progress, has. `is_watched`: the protocol is on."""
        self.cuts, self.interrupted = 0, 0
        self.mixed: list[Facts] = []
        self.steps: set[float] = set()
        self._trainer = trainer
        self._read = read
        self.is_watched = is_watched
        self._stop = threading.Event()
        self._random = np.random.default_rng(0)
        self._thread = threading.Thread(target=self._run, name="cuts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._trainer.lock:
                cut = self._take()
                if cut is not None:
                    self._look_at(cut)
                    self._trainer.trackers.undo(cut)
            time.sleep(self._random.random() * 0.001)

    def _take(self) -> Cut | None:
        if not self.is_watched:
            return self._trainer._cut(untold=0)
        quiet = self._trainer.watch.quiet()
        if quiet is None:
            return None
        cut = self._trainer._take(quiet, is_closing=False)
        self.interrupted += cut is None
        return cut

    def _look_at(self, cut: Cut) -> None:
        facts = self._read(cut, json.loads(cut.trainer_state))
        self.cuts += 1
        self.steps.update(facts.values())
        if len(set(facts.values())) > 1:
            self.mixed.append(facts)
