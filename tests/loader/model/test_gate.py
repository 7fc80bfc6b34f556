"""Readers share, a writer is alone and goes first."""

from __future__ import annotations

import threading

import pytest

from loader.model.gate import Gate
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.I2


def in_thread(action: object) -> threading.Thread:
    assert callable(action)
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_readers_are_inside_together() -> None:
    gate, both = Gate(), threading.Barrier(2)

    def read() -> None:
        with gate:
            both.wait(LIMIT_SECONDS)

    threads = [in_thread(read), in_thread(read)]
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert not both.broken


def test_writer_waits_for_readers_inside_and_later_readers_wait_for_it() -> None:
    gate, order = Gate(), list[str]()
    leave = threading.Event()
    entered = threading.Event()

    def first_reader() -> None:
        with gate:
            entered.set()
            leave.wait(LIMIT_SECONDS)
            order.append("first reader")

    def writer() -> None:
        with gate.exclusive():
            order.append("writer")

    def second_reader() -> None:
        with gate:
            order.append("second reader")

    threads = [in_thread(first_reader)]
    assert entered.wait(LIMIT_SECONDS)
    threads.append(in_thread(writer))
    wait_until(lambda: gate.is_closed, "the writer waits")
    threads.append(in_thread(second_reader))
    leave.set()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert order == ["first reader", "writer", "second reader"]


def test_failure_inside_opens_the_gate_again() -> None:
    gate = Gate()
    for hold in (gate.exclusive(), gate):
        try:
            with hold:
                raise KeyError
        except KeyError:
            pass
    with gate.exclusive():
        assert gate.is_closed
    with gate:
        assert not gate.is_closed


def test_writers_exclude_each_other() -> None:
    gate, inside, most = Gate(), 0, 0

    def write() -> None:
        nonlocal inside, most
        for _ in range(200):
            with gate.exclusive():
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [in_thread(write) for _ in range(4)]
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert most == 1
