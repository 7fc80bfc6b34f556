"""Whether a server answers, asked of plain sockets; servers of TensorFlow are asked in test_server_patience."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hotdelta.train.servers import patience
from hotdelta.train.servers.patience import silent_servers, why_silent
from tests.reserved_ports import reserved_ports
from tests.waiting import LIMIT_SECONDS


@contextmanager
def listening(greet: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of somebody who greets whoever comes, and leaves when the first one has gone."""
    with socket.create_server(("localhost", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                greet(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
        thread.join()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the thread is that answers."""
    monkeypatch.setattr(patience, "ANSWER_SECONDS", LIMIT_SECONDS)


def test_one_that_speaks_first_answers(patient: None) -> None:
    with listening(lambda connection: connection.sendall(b"hello")) as address:
        assert why_silent(address) is None


def test_one_that_hangs_up_does_not_answer(patient: None) -> None:
    with listening(lambda connection: None) as address:
        assert why_silent(address) == "it hangs up"


def test_those_that_are_silent_are_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "ANSWER_SECONDS", 0.05)
    with reserved_ports(1) as (port,), socket.create_server(("localhost", 0)) as stopped:
        found = silent_servers(
            {
                "dead": f"localhost:{port}",
                "stopped": f"localhost:{stopped.getsockname()[1]}",
                "nonsense": "localhost",
            }
        )
    assert found == {
        "dead": "connection refused",
        "stopped": "it says nothing",
        "nonsense": "'localhost' is no address",
    }


def test_a_look_at_many_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.0)
    assert silent_servers({"dead": "nonsense"}) == {}
