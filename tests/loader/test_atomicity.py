"""One prediction sees one position, across all tables and the dense variable; without the gate it does not.

Each delta deletes keys, brings back others that were deleted before, and gives the rows of some to others.
"""

from __future__ import annotations

import functools
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import Position
from hotdelta.train import DynamicTable
from loader import Loader
from loader.model.gate import Gate
from tests.loader.step_model import (
    SIGNATURE,
    STEPS_TO_LIVE,
    WANDERERS,
    Array,
    KeyedStepModel,
    Trainer,
    assert_serves,
    export,
    rewind,
    serving,
    wait_for_position,
    wanderers_at,
)
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = [pytest.mark.I2, pytest.mark.optimized]

PREDICTIONS, MANY_PREDICTIONS = 15_000, 250_000
DIFFERENT_STEPS = 20
READERS = 3
TABLE_ROWS = 2_000


class NoGate(Gate):
    """Lets everybody through at any time."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *exception: object) -> None:
        return

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        yield


class ProbingGate(Gate):
    """Lets the updater itself predict at the last moment before a hold and at the first after it."""

    def __init__(self) -> None:
        super().__init__()
        self.probe: Callable[[], None] = lambda: None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self.probe()
        with super().exclusive():
            yield
        self.probe()


@dataclass
class Readers:
    """Threads that predict as fast as they can, and check that each answer is of one step and says so."""

    loader: Loader
    steps: Counter[int] = field(default_factory=Counter)
    mixed: list[str] = field(default_factory=list)
    mislabelled: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _counts: list[int] = field(default_factory=lambda: [0] * READERS)

    @property
    def predictions(self) -> int:
        return sum(self._counts)

    def __enter__(self) -> Self:
        for number in range(READERS):
            thread = threading.Thread(target=self._read, args=(number,), name=f"reader-{number}")
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)

    def _read(self, number: int) -> None:
        feeds = {"ids": np.array([0, TABLE_ROWS - 1, TABLE_ROWS // 2, number])}
        while not self._stop.is_set():
            outputs, version = self.loader.predict(SIGNATURE, feeds)
            self._counts[number] += 1
            wanderers, step = outputs.pop("wanderers"), outputs["bias"][0]
            if wanderers.tobytes() != bits_of_wanderers(step) or not all(
                (value == step).all() for value in outputs.values()
            ):
                self.mixed.append(f"{version}: {outputs}, {wanderers}")
            elif step != version.step:
                self.mislabelled.append(f"{version}: {outputs}")
            self.steps[version.step] += 1


@functools.cache
def bits_of_wanderers(step: float) -> bytes:
    return wanderers_at(int(step)).tobytes()


def has_strangers(wanderers: Array) -> bool:
    numbers = wanderers[:, 1]
    return bool(((numbers != 0) & (numbers != np.arange(1, len(WANDERERS) + 1))).any())


@pytest.fixture(autouse=True)
def switching_often() -> Iterator[None]:
    """Threads take turns every 20 microseconds instead of 5 milliseconds: races that are rare become likely."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("torture")
    trainer = Trainer(root / "run", model=KeyedStepModel(TABLE_ROWS, width=32))
    trainer.train()
    export(root / "run", root / "export")
    trainer.close()
    return root


@pytest.fixture
def trained(exported: Path, tmp_path: Path) -> Iterator[tuple[Path, Trainer]]:
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    trainer = Trainer(tmp_path / "run", model=KeyedStepModel(TABLE_ROWS, width=32))
    yield tmp_path, trainer
    trainer.close()


def test_no_answer_mixes_steps_and_each_says_its_step(trained: tuple[Path, Trainer]) -> None:
    predict_while_rows_change(*trained, predictions=PREDICTIONS)


@pytest.mark.soak
def test_no_answer_of_many_mixes_steps(trained: tuple[Path, Trainer]) -> None:
    predict_while_rows_change(*trained, predictions=MANY_PREDICTIONS)


def predict_while_rows_change(root: Path, trainer: Trainer, *, predictions: int) -> None:
    with serving(root) as loader:
        wait_for_position(loader, Position(1, 2))
        with Readers(loader) as readers:
            newest = trainer.train()
            while not readers.mixed and (
                readers.predictions < predictions or len(readers.steps) < DIFFERENT_STEPS
            ):
                newest = trainer.train()
            wait_for_position(loader, newest)
        assert readers.mixed == []
        assert readers.mislabelled == []


def test_version_changes_inside_the_hold_that_changes_the_rows(trained: tuple[Path, Trainer]) -> None:
    root, trainer = trained
    gate, answers = ProbingGate(), list[tuple[float, int]]()
    with serving(root, gate=gate) as loader:
        wait_for_position(loader, Position(1, 2))

        def probe() -> None:
            outputs, version = loader.predict(SIGNATURE, {"ids": [0]})
            answers.append((outputs["users"][0, 0], version.step))

        gate.probe = probe
        for _ in range(3):
            wait_for_position(loader, trainer.train())
        gate.probe = lambda: None
    assert answers
    assert [rows for rows, _ in answers] == [step for _, step in answers]


IN_EVERY_WAY = pytest.mark.parametrize(
    "limits",
    [{}, {"undo_bytes": 0}, {"undo_bytes": 0, "full_diff_bytes": 0, "slice_bytes": 4096}],
    ids=["by-undo", "through-a-staged-full", "through-a-full-beside"],
)


@IN_EVERY_WAY
def test_no_answer_mixes_steps_when_the_history_forks(
    trained: tuple[Path, Trainer], limits: dict[str, int]
) -> None:
    predict_while_the_history_forks(*trained, limits, forks=1)


@pytest.mark.soak
@IN_EVERY_WAY
def test_no_answer_mixes_steps_when_the_history_forks_again_and_again(
    trained: tuple[Path, Trainer], limits: dict[str, int]
) -> None:
    predict_while_the_history_forks(*trained, limits, forks=10)


def predict_while_the_history_forks(
    root: Path, trainer: Trainer, limits: dict[str, int], *, forks: int
) -> None:
    with serving(root, **limits) as loader:
        wait_for_position(loader, Position(1, 2))
        with Readers(loader) as readers:
            for _ in range(forks):
                trainer.train()
                wait_for_position(loader, trainer.train())
                trainer = rewind(trainer)
                wait_for_position(loader, trainer.train())
        assert readers.mixed == []
        assert readers.mislabelled == []
        assert_serves(loader, trainer.model)
        trainer.close()


def test_without_the_gate_answers_do_mix_steps(trained: tuple[Path, Trainer]) -> None:
    root, trainer = trained
    with serving(root, gate=NoGate()) as loader:
        newest = trainer.train()
        wait_for_position(loader, newest)
        with Readers(loader) as readers:

            def train_until_mixed() -> bool:
                trainer.train()
                return bool(readers.mixed)

            wait_until(train_until_mixed, "a mixed answer")


def test_an_index_leads_to_no_row_of_another_key_until_it_is_three_deltas_old(
    trained: tuple[Path, Trainer],
) -> None:
    """Freed rows wait for the commit of their end and for another step; then the torture deals them, in each delta."""
    trainer = trained[1]
    for _ in range(2 * STEPS_TO_LIVE):
        trainer.train()
    keyed = trainer.model.keyed
    for _ in range(2 * STEPS_TO_LIVE):
        in_use, old = keyed.counts.numpy()[0], read_index(keyed)
        for _ in range(2):
            trainer.train()
            assert not has_strangers(answer_through(old, trainer.model))
        trainer.train()
        assert has_strangers(answer_through(old, trainer.model))
        assert keyed.counts.numpy()[0] == in_use


def read_index(keyed: DynamicTable) -> Array:
    buckets = keyed.counts.numpy()[1]
    return np.asarray(keyed.index.sparse_read(np.arange(buckets)))


def answer_through(index: Array, model: KeyedStepModel) -> Array:
    """What the WANDERERS read when the index of the model is an earlier one, and its rows are those that it has."""
    newest = read_index(model.keyed)
    write_index(model.keyed, index)
    answer = np.asarray(model.predict([0])["wanderers"])
    write_index(model.keyed, newest)
    return answer


def write_index(keyed: DynamicTable, index: Array) -> None:
    places = np.arange(len(index), dtype=np.int64)
    tf.raw_ops.ResourceScatterUpdate(resource=keyed.index.handle, indices=places, updates=index)
