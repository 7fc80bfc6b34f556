"""Orders that survive a restart: what is kept, when it cannot be, and what a restarted loader does with it."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotdelta.chain import Disk, Node, Position
from hotdelta.errors import ConfigurationError, NotReadyError
from loader import LoaderSettings, State
from loader.orders.order_book import ORDERS_FILE, OrderBook
from loader.standing_orders import Orders
from tests.loader.checks.test_quarantine import poison, wait_until_quarantined
from tests.loader.step_model import (
    Trainer,
    answer,
    assert_serves,
    serving,
    wait_for_position,
    wait_for_status,
)

StartTrainer = Callable[[], Trainer]
READY = Position(1, 2)
CALLS_OF_A_WRITE = 6
PINNED = Orders(
    Position(3, 17), frozenset({Node(Position(3, 18), "a" * 32)}), frozenset({Node(Position(3, 9), "b" * 32)})
)


def settings(root: Path, pin: Position | None = None) -> LoaderSettings:
    (root / "state").mkdir(exist_ok=True)
    return LoaderSettings(root / "export", root / "run", pin=pin, state_dir=root / "state")


def give(book: OrderBook, orders: Orders) -> None:
    book.orders.pin, book.orders.bad, book.orders.released = orders.pin, orders.bad, orders.released
    book.orders.is_pin_a_setting = False
    book.keep()


class FullDisk(Disk):
    """Has no room left, from a certain moment on."""

    is_full = False

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_at(fd, data, offset)


class DyingDisk(Disk):
    """Ends the process, as far as anybody can tell, at its n-th call."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return super().__getattribute__(name)


@pytest.mark.parametrize("calls", range(8))
def test_a_kill_at_any_system_call_leaves_the_old_orders_or_the_new_ones(tmp_path: Path, calls: int) -> None:
    give(OrderBook(settings(tmp_path)), PINNED)
    book = OrderBook(settings(tmp_path), disk=DyingDisk(calls))
    other = Orders(Position(5, 5))
    try:
        give(book, other)
        assert calls >= CALLS_OF_A_WRITE
        expected = [other]
    except KeyboardInterrupt:
        expected = [PINNED, other]
    assert OrderBook(settings(tmp_path)).orders in expected


def test_orders_are_what_they_were(tmp_path: Path) -> None:
    give(OrderBook(settings(tmp_path)), PINNED)
    again = OrderBook(settings(tmp_path))
    assert (again.orders, again.is_kept) == (PINNED, True)
    give(again, Orders())
    assert OrderBook(settings(tmp_path)).orders == Orders()
    assert [path.name for path in (tmp_path / "state").iterdir()] == [ORDERS_FILE]


def test_without_a_directory_orders_are_not_kept() -> None:
    book = OrderBook(LoaderSettings(Path("export"), Path("run"), pin=Position(3, 17)))
    assert (book.orders, book.is_kept) == (Orders(Position(3, 17)), True)
    give(book, Orders())
    assert not book.is_kept
    give(book, Orders(Position(3, 17)))
    assert book.is_kept


def test_a_pin_that_is_given_at_the_start_wins(tmp_path: Path) -> None:
    give(OrderBook(settings(tmp_path)), PINNED)
    book = OrderBook(settings(tmp_path, pin=Position(3, 5)))
    assert (book.orders.pin, book.orders.bad) == (Position(3, 5), PINNED.bad)


def test_a_pin_that_was_rolled_back_gives_way_to_what_was_ordered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is started again with the same arguments after an emergency comes back where it was."""
    book = OrderBook(settings(tmp_path, pin=Position(3, 18)))
    assert book.orders.pin == Position(3, 18)
    give(book, PINNED)
    assert book.is_kept
    book = OrderBook(settings(tmp_path, pin=Position(3, 18)))
    assert (book.orders, book.is_kept) == (PINNED, True)
    assert "the pin was rolled back" in caplog.text


def test_a_pin_that_is_given_at_the_start_is_no_order_and_is_not_kept(tmp_path: Path) -> None:
    book = OrderBook(settings(tmp_path, pin=Position(3, 5)))
    book.orders.released = PINNED.released
    book.keep()
    assert book.is_kept
    assert OrderBook(settings(tmp_path)).orders == Orders(released=PINNED.released)
    give(OrderBook(settings(tmp_path)), PINNED)
    book = OrderBook(settings(tmp_path, pin=Position(3, 5)))
    book.orders.released = frozenset()
    book.keep()
    assert OrderBook(settings(tmp_path)).orders == Orders(PINNED.pin, PINNED.bad)


def test_an_order_takes_the_place_of_the_pin_of_the_start_until_the_next_one(tmp_path: Path) -> None:
    flagged = settings(tmp_path, pin=Position(3, 5))
    book = OrderBook(flagged)
    book.orders.hold(Position(3, 5), bad=frozenset())
    book.keep()
    assert OrderBook(settings(tmp_path)).orders.pin == Position(3, 5), "now it was ordered"
    book.orders.hold(Position(3, 4), bad=PINNED.bad)
    book.keep()
    assert not book.is_kept, "the next one is started with the old pin"
    assert OrderBook(flagged).orders == Orders(Position(3, 5), PINNED.bad)
    book.orders.resume()
    book.keep()
    assert not book.is_kept
    assert OrderBook(settings(tmp_path)).orders == Orders()


def test_orders_that_cannot_be_written_hold_and_are_said_not_to_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    book = OrderBook(settings(tmp_path), disk=disk)
    disk.is_full = True
    give(book, PINNED)
    assert (book.orders, book.is_kept) == (PINNED, False)
    assert "a restart forgets them" in caplog.text
    assert OrderBook(settings(tmp_path)).orders == Orders()
    disk.is_full = False
    book.keep()
    assert book.is_kept


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format_version": 2}',
        '{"format_version": 1, "pin": "newest"}',
        pytest.param("[" * 100_000, id="nested deeply"),
        '{"format_version": 1, "pin": 7}',
    ],
)
def test_kept_orders_that_cannot_be_read_are_no_reason_to_go_on_without(tmp_path: Path, content: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ORDERS_FILE).write_text(content)
    with pytest.raises(ConfigurationError, match="cannot be used: it is malformed"):
        OrderBook(settings(tmp_path))


def test_a_restarted_loader_stays_where_it_was_rolled_back_to(root: Path, train: StartTrainer) -> None:
    state = root / "state"
    trainer = train()
    positions = [trainer.train([number]) for number in range(4)]
    with serving(root, state_dir=state) as loader:
        wait_for_position(loader, positions[3])
        loader.rollback(positions[1])
        kept = answer(loader)[0]["users"].tobytes()
        assert loader.status().are_orders_kept
    with serving(root, state_dir=state) as loader:
        wait_for_position(loader, positions[1])
        status = wait_for_status(loader, lambda status: status.state is State.PINNED, "pinned")
        assert (status.pinned, answer(loader)[1].position) == (positions[1], positions[1])
        assert answer(loader)[0]["users"].tobytes() == kept
        assert {item.node.position for item in status.quarantined} == {positions[2], positions[3]}
        loader.resume()
        wait_for_position(loader, positions[3])
        assert_serves(loader, trainer.model)
    with serving(root, state_dir=state) as loader:
        wait_for_position(loader, positions[3])
    with serving(root) as loader:
        wait_for_position(loader, positions[3])
        loader.rollback(positions[1])
        assert not loader.status().are_orders_kept


def test_a_release_does_not_keep_the_pin_of_the_start(root: Path, train: StartTrainer) -> None:
    state = root / "state"
    trainer = train()
    bad = poison(trainer, 1e7)
    with serving(root, state_dir=state, pin=bad) as loader:
        wait_until_quarantined(loader, bad, "larger than")
        loader.release(bad)
        wait_for_position(loader, bad)
        assert (loader.status().pinned, loader.status().are_orders_kept) == (bad, True)
    after = trainer.train([9])
    with serving(root, state_dir=state) as loader:
        wait_for_position(loader, after)
        assert_serves(loader, trainer.model)


def test_a_restarted_loader_takes_what_was_released(root: Path, train: StartTrainer) -> None:
    state = root / "state"
    trainer = train()
    bad = poison(trainer, 1e7)
    with serving(root, state_dir=state) as loader:
        wait_until_quarantined(loader, bad, "larger than")
        loader.release(bad)
        wait_for_position(loader, bad)
    with serving(root, state_dir=state) as loader:
        wait_for_position(loader, bad)
        assert_serves(loader, trainer.model)
    assert json.loads((state / ORDERS_FILE).read_text())["released"][0]["position"] == str(bad)


def test_a_loader_that_is_pinned_where_nothing_leads_can_be_resumed(root: Path) -> None:
    state = root / "state"
    give(OrderBook(settings(root)), Orders(Position(7, 7)))
    with serving(root, state_dir=state) as loader:
        wait_for_status(loader, lambda status: "7.7" in status.reason, "it says where it is pinned")
        with pytest.raises(NotReadyError):
            answer(loader)
        assert loader.resume() is None
        wait_for_position(loader, READY)
    assert OrderBook(settings(root)).orders == Orders()
