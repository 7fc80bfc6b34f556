"""A trainer that was given the address of a store: it trains on its own disk, and the store follows."""

from __future__ import annotations

import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import Kind
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import (
    ConfigurationError,
    HotdeltaError,
    StoreError,
    SupersededError,
    UnfitStoreError,
    UnpublishedError,
)
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish import claims
from hotdelta.remote.publish.figures import PublishFigures
from hotdelta.remote.publish.outbox import Unpublished
from hotdelta.remote.publish.spool import MARKER
from hotdelta.remote.stores import opening
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.train import CheckpointConfig, DeltaWriter
from tests.remote.servers import S3Server
from tests.remote.tried_stores import AwayStore
from tests.waiting import wait_until

BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None}
ROWS = 20


class Trainer:
    """One start of a training program: a table, a bias, and an optimizer with slots of both."""

    def __init__(self, address: str, spool: Path, seed: int = 0, **options: Any) -> None:
        random = np.random.default_rng(seed)
        self.table = tf.Variable(random.random((ROWS, 3), np.float32), name="table")
        self.bias = tf.Variable(0.0, name="bias")
        self.optimizer = keras.optimizers.Adam(0.1)
        self.optimizer.build([self.table, self.bias])
        self.writer = DeltaWriter(
            address,
            {"table": self.table, "bias": self.bias},
            tables=["table"],
            optimizer=self.optimizer,
            spool_dir=spool,
            **{**BY_HAND, **options},
        )

    def step(self, *ids: int) -> None:
        with self.writer.training_step():
            gradient = tf.IndexedSlices(tf.ones((len(ids), 3)), tf.constant(ids, tf.int32), (ROWS, 3))
            self.optimizer.apply([gradient, tf.constant(1.0)], [self.table, self.bias])

    def values(self) -> list[bytes]:
        return [item.numpy().tobytes() for item in (self.table, self.bias, *self.optimizer.variables)]


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def away(address: str) -> AwayStore:
    """The store at that address, which goes away when it is told to."""
    store = AwayStore(MemoryStore(address))
    opening._in_memory[address] = store  # type: ignore[assignment]
    return store


@pytest.fixture
def start() -> Iterator[Callable[..., Trainer]]:
    """Begins trainers that are closed, whatever becomes of them."""
    started: list[Trainer] = []

    def begin(*arguments: Any, **options: Any) -> Trainer:
        started.append(Trainer(*arguments, **options))
        return started[-1]

    yield begin
    for trainer in started:
        with suppress(HotdeltaError):
            trainer.writer.close()


Start = Callable[..., Trainer]


def wait_until_published(trainer: Trainer) -> PublishFigures:
    """Everything that is committed. A full goes beside the deltas, and may arrive after them."""
    figures = trainer.writer.status.publishing
    assert figures is not None
    wait_until(
        lambda: figures.commits["full"] and figures.unpublished == Unpublished(),
        lambda: f"published {figures.commits}, and not {figures.unpublished}",
    )
    return figures


def in_log(store: Store, kind: Kind) -> list[str]:
    return [str(position) for position in CommitLog(store).positions_after(kind, None)]


def train_on(trainer: Trainer) -> None:
    while True:
        trainer.step(3)
        trainer.writer.save()


@contextmanager
def never_silent() -> Iterator[None]:
    """Other trainers' claims are looked for at every commit."""
    before = claims.CHECK_SECONDS
    claims.CHECK_SECONDS = 0.0
    try:
        yield
    finally:
        claims.CHECK_SECONDS = before


def test_another_machine_goes_on_bit_for_bit(s3_address: str, start: Start, tmp_path: Path) -> None:
    first = start(s3_address, tmp_path / "one")
    for ids in ((1, 2), (2, 3), (4,)):
        first.step(*ids)
        first.writer.save()
    first.writer.save_full()
    first.step(5)
    first.writer.close()
    assert first.writer.status.publishing is None or first.writer.status.publishing.unpublished.deltas == 0
    second = start(s3_address, tmp_path / "two", seed=7)
    assert second.writer.resumed is not None
    assert str(second.writer.resumed.position) == "1.6"
    assert second.values() == first.values()
    second.step(6)
    second.writer.close()
    store = opening.open_store(s3_address)
    assert in_log(store, Kind.DELTA)[-2:] == ["1.6", "2.1"]
    third = start(s3_address, tmp_path / "one", seed=9)
    assert str(third.writer.position) == "2.1"
    assert third.values() == second.values()


def test_what_is_published_is_what_was_trained(address: str, start: Start, tmp_path: Path) -> None:
    trainer = start(address, tmp_path / "spool")
    trainer.step(1)
    trainer.writer.close()
    figures = trainer.writer.status.publishing
    assert figures is not None
    assert figures.commits == {"full": 1, "delta": 1}
    assert figures.unpublished.bytes == 0
    names = [entry.name for entry in opening.open_store(address).list_after("")]
    assert sum(name.startswith(layout.SCHEMAS) for name in names) == 1
    assert layout.claim_name(1) in names


def test_training_goes_on_while_the_store_is_away_and_it_catches_up(
    seaweedfs: S3Server, s3_address: str, start: Start, tmp_path: Path
) -> None:
    trainer = start(s3_address, tmp_path / "spool", publish_timeout_secs=0)
    figures = wait_until_published(trainer)
    seaweedfs.kill()
    try:
        for row in range(6):
            trainer.step(row)
            trainer.writer.save()
        assert figures.unpublished.deltas == 6
        with pytest.raises(UnpublishedError, match="6 commits"):
            trainer.writer.close()
        offline = start(s3_address, tmp_path / "spool", seed=3, publish_timeout_secs=150)
        assert offline.values() == trainer.values()
        offline.step(7)
        offline.writer.save()
    finally:
        seaweedfs.start()
    offline.writer.close()
    store = opening.open_store(s3_address)
    assert in_log(store, Kind.DELTA) == [f"1.{seq}" for seq in range(2, 8)] + ["2.1"]
    other = start(s3_address, tmp_path / "other", seed=4)
    assert other.values() == offline.values()


def test_a_state_of_which_a_full_is_written_is_not_folded_away(
    address: str, away: AwayStore, start: Start, tmp_path: Path
) -> None:
    """It is told before the delta that closes it, so also when the full is not there yet, or never will be."""
    trainer = start(address, tmp_path / "spool", fold_deltas_above=1)
    figures = trainer.writer.status.publishing
    assert figures is not None
    wait_until(lambda: figures.commits["full"], "the first full is not published")
    away.is_away = True
    trainer.step(0)
    trainer.writer.save()
    wait_until(lambda: figures.failures, "nothing was tried")
    for row in (1, 2, 3):
        trainer.step(row)
        trainer.writer.save()
    trainer.step(4)
    (tmp_path / "spool" / "model.ckpt-5.index").write_bytes(b"in the way of the full")
    with suppress(HotdeltaError):
        trainer.writer.save_full()
    for row in (6, 7, 8):
        trainer.step(row)
        trainer.writer.save()
    away.is_away = False
    wait_until(lambda: not figures.unpublished.deltas, "it does not catch up")
    assert in_log(away.inner, Kind.FULL) == ["1.1"]
    assert in_log(away.inner, Kind.DELTA) == ["1.2", "1.6", "1.9"]
    trainer.writer.close()
    assert start(address, tmp_path / "other", seed=5).values() == trainer.values()


def test_a_full_spool_postpones_deltas_and_loses_nothing(
    address: str, away: AwayStore, start: Start, tmp_path: Path
) -> None:
    trainer = start(address, tmp_path / "spool", spool_bytes=1, save_incremental_steps=1)
    figures = wait_until_published(trainer)
    away.is_away = True
    trainer.step(1)
    wait_until(lambda: figures.unpublished.deltas == 1, "no delta was cut")
    for row in range(2, 8):
        trainer.step(row)
    assert figures.unpublished.deltas == 1
    assert trainer.writer.status.postponed == 6
    away.is_away = False
    wait_until(lambda: figures.unpublished.deltas == 0, "it does not catch up")
    trainer.step(8)
    trainer.writer.close()
    listing = Scanner(tmp_path / "spool").scan()
    rows = [m.tables["table"].rows_changed for m in listing.manifests if m.kind is Kind.DELTA]
    assert rows == [1, 8], (
        "the next delta is the fold of what was postponed (Adam moves the row of before, too)"
    )
    assert start(address, tmp_path / "other", seed=5).values() == trainer.values()


def test_what_is_not_published_stays_here_whatever_retention_says(
    address: str, away: AwayStore, start: Start, tmp_path: Path
) -> None:
    trainer = start(address, tmp_path / "spool", keep_fulls=1)
    figures = wait_until_published(trainer)
    away.is_away = True
    rounds = 0
    # Until the thread that sends them comes to a full, the next one takes its place.
    while rounds < 4 or figures.unpublished.fulls < 2:
        assert rounds < ROWS, figures.unpublished
        trainer.step(rounds)
        trainer.writer.save()
        trainer.writer.save_full()
        rounds += 1
    fulls = [m for m in Scanner(tmp_path / "spool").scan().manifests if m.kind is Kind.FULL]
    assert len(fulls) == 2, "the one on its way, and the newest"
    waiting = figures.unpublished
    away.is_away = False
    trainer.writer.close()
    assert (waiting.deltas, waiting.fulls) == (2 * rounds, 2)
    assert figures.passed_over == 0
    assert figures.commits["delta"] == 2 * rounds
    assert start(address, tmp_path / "other", seed=5).values() == trainer.values()


def test_sigterm_waits_until_the_last_step_is_published(
    address: str, away: AwayStore, start: Start, tmp_path: Path
) -> None:
    published_at_signal: list[list[str]] = []
    before = signal.signal(
        signal.SIGTERM, lambda *_: published_at_signal.append(in_log(away.inner, Kind.DELTA))
    )
    try:
        trainer = start(address, tmp_path / "spool")
        with trainer.writer:
            away.is_away = True
            timer = threading.Timer(0.3, lambda: setattr(away, "is_away", False))
            timer.start()
            signal.raise_signal(signal.SIGTERM)
            assert published_at_signal == [], "it is kept until the step is saved"
            trainer.step(1)
            assert published_at_signal == [["1.2"]]
            timer.join()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_training_waits_for_room_where_it_is_told_to(
    address: str, away: AwayStore, start: Start, tmp_path: Path
) -> None:
    trainer = start(
        address, tmp_path / "spool", spool_bytes=1, save_incremental_steps=1, when_spool_is_full="wait"
    )
    figures = wait_until_published(trainer)
    away.is_away = True
    trainer.step(1)
    wait_until(lambda: figures.unpublished.deltas == 1, "no delta was cut")
    timer = threading.Timer(0.3, lambda: setattr(away, "is_away", False))
    timer.start()
    trainer.step(2)
    assert not away.is_away, "the step came back before there was room"
    timer.join()


def test_a_trainer_that_another_one_passed_stops(address: str, start: Start, tmp_path: Path) -> None:
    with never_silent():
        first = start(address, tmp_path / "one")
        first.step(1)
        first.writer.save()
        wait_until_published(first)
        second = start(address, tmp_path / "two")
        assert str(second.writer.position) == "1.2"
        second.step(2)
        second.writer.save()
        with pytest.raises(SupersededError, match="took the run 2"):
            train_on(first)
        with pytest.raises(SupersededError):
            first.writer.close()
        second.step(4)
        second.writer.close()
    assert in_log(opening.open_store(address), Kind.DELTA) == ["1.2", "2.1", "2.2"]
    again = start(address, tmp_path / "one", seed=3)
    assert again.values() == second.values(), "what was passed over is not gone on from"


def test_nothing_begins_where_the_store_is_away_and_nothing_is_here(
    address: str, away: AwayStore, start: Start, tmp_path: Path
) -> None:
    away.is_away = True
    with pytest.raises(StoreError, match="away"):
        start(address, tmp_path / "spool")
    with pytest.raises(StoreError, match="away"):
        start(address, tmp_path / "spool", resume=False)
    away.is_away = False
    start(address, tmp_path / "spool").writer.close()


def test_a_store_that_ignores_conditions_is_refused(rclone: S3Server, start: Start, tmp_path: Path) -> None:
    with pytest.raises(UnfitStoreError):
        start(rclone.new_address(), tmp_path / "spool")


def test_a_spool_that_is_given_by_its_path_is_refused(address: str, start: Start, tmp_path: Path) -> None:
    start(address, tmp_path / "spool").writer.close()
    assert (tmp_path / "spool" / MARKER).exists()
    copied = shutil.copytree(tmp_path / "spool", tmp_path / "copied")
    with pytest.raises(ConfigurationError, match=r"is the spool of memory://.*give memory://.* as spool_dir"):
        DeltaWriter(copied, {"table": tf.Variable(tf.zeros((4, 2)))}, tables=["table"])
    with pytest.raises(
        ConfigurationError, match=r"is the spool of memory://[0-9a-f]+, not of memory://other"
    ):
        start("memory://other", tmp_path / "spool")


def test_a_config_may_have_an_address(address: str, tmp_path: Path) -> None:
    table = tf.Variable(tf.zeros((4, 2)))
    config = CheckpointConfig(address, spool_dir=tmp_path / "spool")
    with DeltaWriter(config, {"table": table}, tables=["table"]) as writer:
        assert str(writer.position) == "1.1"
    assert config.run_dir == tmp_path / "spool"
    assert in_log(opening.open_store(address), Kind.FULL) == ["1.1"]
