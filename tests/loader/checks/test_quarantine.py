"""An update whose values are bad is never served; it is listed, stepped over by a full, or released by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import Kind, Position
from hotdelta.errors import RequestError
from loader import Loader, SanityLimits, SanitySettings, State
from tests.loader.step_model import (
    Trainer,
    answer,
    assert_serves,
    find_commit,
    serving,
    wait_for_position,
    wait_for_status,
)

pytestmark = pytest.mark.I4

StartTrainer = Callable[[], Trainer]
READY = Position(1, 2)
OFF = SanityLimits(is_nonfinite_allowed=True, max_abs=np.inf, outlier_factor=np.inf)
GATES_OFF = SanitySettings(OFF, OFF)


def poison(trainer: Trainer, value: float, row: int = 5) -> Position:
    """A delta with one bad value in a table, as a trainer that diverged would write it."""
    rows = tf.fill([1, 4], value)
    tf.raw_ops.ResourceScatterUpdate(resource=trainer.model.users.handle, indices=[row], updates=rows)
    trainer.writer.touch("users", np.array([row]))
    return trainer.train([1])


def wait_until_quarantined(loader: Loader, position: Position, reason: str) -> None:
    def is_listed() -> bool:
        found = {item.node.position: item.reason for item in loader.status().quarantined}
        return reason in found.get(position, "")

    wait_for_status(loader, lambda _: is_listed(), f"{position} is quarantined: {reason}")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_bad_values_keep_the_old_position_until_a_full_without_them(
    root: Path, train: StartTrainer, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        good = trainer.train([1])
        wait_for_position(loader, good)
        kept = answer(loader)[0]["users"].tobytes()
        bad = poison(trainer, value)
        wait_until_quarantined(loader, bad, "users")
        trainer.train([7])
        worse = trainer.train_full([8])
        wait_until_quarantined(loader, worse, "users")
        assert (answer(loader)[1].position, answer(loader)[0]["users"].tobytes()) == (good, kept)
        assert loader.status().state is State.DEGRADED
        assert caplog.text.count(f"position={bad}") <= 2
        healed = trainer.train_full()
        wait_for_position(loader, healed)
        assert_serves(loader, trainer.model)
        wait_for_position(loader, trainer.train([3]))
        wait_for_status(loader, lambda status: status.state is State.FOLLOWING, "following")
        assert_serves(loader, trainer.model)


def test_with_the_gate_switched_off_bad_values_get_through(root: Path, train: StartTrainer) -> None:
    with serving(root, sanity=GATES_OFF) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        wait_for_position(loader, poison(trainer, np.nan))
        assert np.isnan(answer(loader)[0]["users"][5]).all()


def test_a_server_that_starts_does_not_take_bad_values_either(root: Path, train: StartTrainer) -> None:
    trainer = train()
    good = trainer.train([1])
    bad = poison(trainer, np.nan)
    full = trainer.train_full([2])
    with serving(root) as loader:
        wait_until_quarantined(loader, bad, "NaN")
        assert answer(loader)[1].position == good
        wait_until_quarantined(loader, full, "NaN")
        wait_for_position(loader, trainer.train_full())
        assert_serves(loader, trainer.model)


def test_an_operator_releases_one_by_name(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        bad = poison(trainer, 1e7)
        wait_until_quarantined(loader, bad, "larger than")
        after = trainer.train([9])
        with pytest.raises(RequestError, match="not in quarantine"):
            loader.release(after)
        released = loader.release(bad)
        assert released is not None
        assert released.position == READY
        wait_for_position(loader, after)
        assert_serves(loader, trainer.model)
        assert loader.status().quarantined == ()


def test_outliers_are_refused_once_there_are_statistics(root: Path, train: StartTrainer) -> None:
    with serving(root, sanity=SanitySettings(min_updates=3)) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        for _ in range(3):
            wait_for_position(loader, trainer.train([1, 2]))
        bad = poison(trainer, 5000.0)
        wait_until_quarantined(loader, bad, "times the usual")
    with serving(root, sanity=SanitySettings(min_updates=100)) as loader:
        wait_for_position(loader, bad)


def test_a_share_of_rows_can_be_limited_for_one_table(root: Path, train: StartTrainer) -> None:
    limits = SanitySettings(by_key={"items": {"max_touched_share": 0.5}})
    with serving(root, sanity=limits) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        wait_for_position(loader, trainer.train(range(32)))
        wait_until_quarantined(loader, trainer.train(range(33)), "touched")


def test_a_damaged_commit_is_listed_and_cannot_be_released(root: Path, train: StartTrainer) -> None:
    trainer = train()
    newest = trainer.train([1])
    manifest = find_commit(root / "run", newest, Kind.DELTA)
    index = root / "run" / ".incremental_checkpoint" / f"{manifest.prefix}.index"
    index.write_bytes(index.read_bytes()[::-1])
    with serving(root) as loader:
        wait_until_quarantined(loader, newest, "index")
        with pytest.raises(RequestError):
            loader.release(newest)
        assert answer(loader)[1].position == READY
