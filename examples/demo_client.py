"""The client of the demo: asks the server over HTTP what users will click on, and checks it against what they do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt

from examples.click_stream import ClickStream, ids_of, log_loss
from examples.processes import ChildFailedError
from hotdelta.chain import Kind, Position, Scanner

EXAM_SIZE = 2_000
TRAFFIC_SECONDS = 0.02

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at the server showed. Chances are the mean over pairs of user and item that share a taste.

    `keys`: how many users and items the served tables know; `new`, `gone`: how many came and went since the first look.
    """

    position: str
    step: int
    keys: int
    new: int
    gone: int
    predicted: float
    frozen: float
    true: float
    served_loss: float
    frozen_loss: float
    best_loss: float


class KeyCensus:
    """How many keys the tables have at the commit that is served, and how many came and went, as manifests say."""

    def __init__(self, run_dir: Path) -> None:
        self._scanner = Scanner(run_dir)
        self._until: Position | None = None
        self.live = self.new = self.gone = 0

    def follow(self, served: Position) -> None:
        """Take in the deltas up to there. The first time only the keys are counted that there are."""
        for manifest in self._scanner.scan().manifests:
            is_next = self._until is None or manifest.position > self._until
            if manifest.kind is Kind.DELTA and is_next and manifest.position <= served:
                tables = manifest.tables.values()
                self.live = sum(table.keys_live or 0 for table in tables)
                if self._until is not None:
                    self.new += sum(table.keys_new or 0 for table in tables)
                    self.gone += sum(table.rows_deleted for table in tables)
        self._until = served


class Client:
    """Gives the server the same exam again and again: who clicks on what, now? The world's answers drift.

    The first paper that it hands in is kept: those are the answers of the same model frozen at start.
    """

    def __init__(self, url: str, run_dir: Path, *, clock: Callable[[], float]) -> None:
        self._http = httpx.Client(base_url=url, timeout=10, trust_env=False)
        self._clock = clock
        self._census = KeyCensus(run_dir)
        self._stream = ClickStream(seed=1)
        users, items = self._stream.pairs(EXAM_SIZE)
        self._users, self._items = users, items
        self._shown = self._stream.are_alike(users, items)
        self._frozen: Floats | None = None

    def is_ready(self) -> bool:
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def read(self) -> Reading:
        """Raises ChildFailedError when the server does not answer."""
        ids = {"user": ids_of(self._users).tolist(), "item": ids_of(self._items).tolist()}
        try:
            answer = self._http.post("/predict", json={"inputs": ids}).raise_for_status()
        except httpx.HTTPError as error:
            raise ChildFailedError(f"the server does not answer: {error}") from error
        now = self._clock()
        document = answer.json()
        self._census.follow(Position.parse(document["version"]["position"]))
        served = np.array(document["outputs"]["click"], np.float64).reshape(-1)
        if self._frozen is None:
            self._frozen = served
        true = self._stream.probability(self._users, self._items, now)
        clicked = self._stream.clicks(self._users, self._items, now)
        return Reading(
            position=document["version"]["position"],
            step=document["version"]["step"],
            keys=self._census.live,
            new=self._census.new,
            gone=self._census.gone,
            predicted=float(served[self._shown].mean()),
            frozen=float(self._frozen[self._shown].mean()),
            true=float(true[self._shown].mean()),
            served_loss=log_loss(served, clicked),
            frozen_loss=log_loss(self._frozen, clicked),
            best_loss=log_loss(true, clicked),
        )

    def keep_asking(self, stop: threading.Event) -> None:
        """Light traffic of one-row requests, so that every update is served as soon as it is live."""
        with httpx.Client(base_url=str(self._http.base_url), timeout=10, trust_env=False) as http:
            while not stop.wait(TRAFFIC_SECONDS):
                try:
                    http.post("/predict", json={"instances": [{"user": 0, "item": 0}]})
                except httpx.TransportError:
                    return

    def close(self) -> None:
        self._http.close()
