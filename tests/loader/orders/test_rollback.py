"""Orders of an operator: back, stay, on. What is served afterwards equals that position bit for bit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotdelta.chain import Position
from hotdelta.errors import NotReadyError, RequestError
from loader import Loader, LoaderSettings, State
from tests.loader.step_model import (
    Trainer,
    answer,
    assert_serves,
    export,
    serving,
    wait_for_position,
    wait_for_status,
)

pytestmark = pytest.mark.I1

StartTrainer = Callable[[], Trainer]
READY = Position(1, 2)
DESK = "loader.orders.operator_desk"


def bits(loader: Loader) -> dict[str, bytes]:
    outputs, version = answer(loader)
    return {"at": str(version.position).encode(), **{key: value.tobytes() for key, value in outputs.items()}}


def train_along(loader: Loader, trainer: Trainer, deltas: int) -> dict[Position, dict[str, bytes]]:
    """What was served at each position."""
    served = {answer(loader)[1].position: bits(loader)}
    for number in range(deltas):
        position = trainer.train([number, 2 * number + 1])
        wait_for_position(loader, position)
        served[position] = bits(loader)
    return served


@pytest.mark.parametrize(
    "settings",
    [{}, {"undo_bytes": 0}, {"undo_bytes": 0, "full_diff_bytes": 0, "slice_bytes": 4096}],
    ids=["undo", "full-staged", "full-in-slices"],
)
def test_rollback_is_bit_equal_pins_and_resumes(
    root: Path, train: StartTrainer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving(root, **settings) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        served = train_along(loader, trainer, 5)
        target = Position(2, 2)
        assert loader.rollback(target).position == target
        assert bits(loader) == served[target]
        assert ("updates undone" in caplog.text) == (settings == {})
        after = trainer.train([40])
        status = wait_for_status(loader, lambda status: status.newest_on_disk == after, "the newest is seen")
        status = wait_for_status(loader, lambda status: status.commits_behind == 4, "it says how far behind")
        assert (status.state, status.pinned, bits(loader)) == (State.PINNED, target, served[target])
        assert "newer commits wait for a resume" in status.reason
        assert status.seconds_behind > 0
        rolled_back = {item.node.position for item in status.quarantined if "rolled back" in item.reason}
        assert rolled_back == {Position(2, 3), Position(2, 4), Position(2, 5)}
        loader.resume()
        wait_for_position(loader, after)
        assert_serves(loader, trainer.model)
        status = wait_for_status(loader, lambda status: status.state is State.FOLLOWING, "following")
        assert (status.pinned, status.quarantined) == (None, ())


def test_rollback_by_deltas_and_again(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        served = train_along(loader, train(), 4)
        assert loader.rollback_deltas(1).position == Position(2, 3)
        assert loader.rollback_deltas(2).position == Position(2, 1)
        assert bits(loader) == served[Position(2, 1)]
        assert loader.rollback_deltas(1).position == READY
        assert bits(loader) == served[READY]


def test_an_order_that_leads_through_a_full_is_told_and_can_be_followed_by_the_next(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving(root) as loader:
        loader._updater._report._patience_seconds = math.inf
        wait_for_position(loader, READY)
        trainer = train()
        trained = [trainer.train([1]), trainer.train_full([2]), trainer.train([3]), trainer.train([4])]
        wait_for_status(loader, lambda status: status.updates == len(trained), "all are applied")
        loader._updater._follower.history.clear()
        loader.rollback(trained[2])
        assert loader.status().updates == len(trained) + 2
        assert loader.rollback_deltas(2).position == trained[0]
        assert loader.rollback_deltas(1).position == READY, "from memory"
    told = [record.__dict__ for record in caplog.records if record.name in ("loader.lag", DESK)]
    assert [(line["phrase"], line["fields"]["position"]) for line in told[3:]] == [
        ("update applied", trained[3]),
        ("update applied", trained[1]),
        ("rolled back", trained[2]),
        ("update applied", trained[2]),
        ("update applied", Position(1, 1)),
        ("update applied", READY),
        ("rolled back", trained[0]),
        ("update applied", trained[0]),
        ("rolled back", READY),
    ]
    updates = [line["fields"] for line in told if line["phrase"] == "update applied"]
    assert [fields["position"] for fields in updates if fields["kind"] == "full"] == [
        trained[1],
        Position(1, 1),
    ]
    assert all(fields["verify_ms"] > 0 and fields["committed_to_seen_ms"] >= 0 for fields in updates)


def test_what_an_earlier_rollback_undid_stays_bad(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        train_along(loader, train(), 3)
        loader.rollback(Position(2, 2))
        loader.rollback(Position(2, 1))
        with pytest.raises(RequestError, match="was rolled back"):
            loader.pin(Position(2, 3))
        assert answer(loader)[1].position == Position(2, 1)


def test_pin_keeps_the_position_or_goes_to_another(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        assert loader.pin().position == READY
        newest = [trainer.train([number]) for number in range(3)]
        wait_for_status(loader, lambda status: status.commits_behind == 3, "three are behind")
        assert answer(loader)[1].position == READY
        assert loader.pin(newest[1]).position == newest[1]
        loader.resume()
        wait_for_position(loader, newest[2])
        assert_serves(loader, trainer.model)


def test_orders_that_cannot_be_carried_out_change_nothing(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        served = train_along(loader, trainer, 2)
        orders: tuple[Callable[[], object], ...] = (
            lambda: loader.rollback(Position(9, 9)),
            lambda: loader.rollback(Position(2, 2)),
            lambda: loader.rollback(Position(1, 77)),
            lambda: loader.rollback_deltas(0),
            lambda: loader.rollback_deltas(1000),
            lambda: loader.rollback_deltas(2**31 - 1),
            lambda: loader.pin(Position(9, 9)),
            lambda: loader.release(Position(2, 1)),
        )
        for order in orders:
            with pytest.raises(RequestError):
                order()
            assert bits(loader) == served[Position(2, 2)]
        loader.rollback(Position(2, 1))
        with pytest.raises(RequestError, match="rolled back"):
            loader.pin(Position(2, 2))
        loader.resume()
        wait_for_position(loader, trainer.train([5]))
        assert_serves(loader, trainer.model)


def test_a_new_export_does_not_bring_back_what_was_rolled_back(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        trainer = train()
        served = train_along(loader, trainer, 3)
        loader.rollback(Position(2, 1))
        trainer.close()
        export(root / "run", root / "export")
        status = wait_for_status(loader, lambda status: status.export_version == 2, "the new export")
        assert (status.pinned, bits(loader)) == (Position(2, 1), served[Position(2, 1)])


def test_a_server_starts_pinned(root: Path, train: StartTrainer) -> None:
    trainer = train()
    positions = [trainer.train([number]) for number in range(3)]
    with serving(root, pin=positions[0]) as loader:
        wait_for_position(loader, positions[0])
        status = wait_for_status(loader, lambda status: status.state is State.PINNED, "pinned")
        assert (status.commits_behind, answer(loader)[1].position) == (2, positions[0])
        assert "by --pin" in status.reason
        loader.pin()
        assert "by an operator" in loader.status().reason
        loader.resume()
        wait_for_position(loader, positions[2])
        assert_serves(loader, trainer.model)


def test_a_server_that_is_pinned_where_nothing_leads_serves_nothing_and_says_why(root: Path) -> None:
    with serving(root, pin=Position(7, 7)) as loader:
        wait_for_status(loader, lambda status: "7.7" in status.reason, "it says where it is pinned")
        with pytest.raises(NotReadyError):
            answer(loader)


@pytest.mark.I2
def test_answers_during_rollbacks_are_whole(root: Path, train: StartTrainer) -> None:
    with serving(root) as loader:
        wait_for_position(loader, READY)
        served = train_along(loader, train(), 6)
        stop = threading.Event()
        wrong: list[str] = []

        def ask() -> None:
            while not stop.is_set():
                seen = bits(loader)
                if seen != served[Position.parse(seen["at"].decode())]:
                    wrong.append(str(seen["at"]))

        asking = threading.Thread(target=ask, name="asking")
        asking.start()
        for _ in range(5):
            loader.rollback_deltas(5)
            loader.resume()
            wait_for_position(loader, Position(2, 6))
        stop.set()
        asking.join()
        assert wrong == []


def test_orders_need_a_loader_that_runs(tmp_path: Path) -> None:
    loader = Loader(LoaderSettings(tmp_path / "export", tmp_path / "run"))
    with pytest.raises(NotReadyError):
        loader.resume()
    loader.start()
    with pytest.raises(NotReadyError):
        loader.rollback_deltas(1)
    loader.stop()
    with pytest.raises(NotReadyError):
        loader.pin()
