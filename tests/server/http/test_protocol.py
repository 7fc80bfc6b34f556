"""What clients do to a connection, over real sockets: every one gets an answer in JSON, or is not waited for."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from server.http.listening import configure
from server.http.protocol import MAX_HEAD_BYTES
from tests.server.application import application
from tests.server.connections import (
    BODY,
    LENGTH,
    Pace,
    answered_before,
    ask,
    read_answer,
    request,
    serving,
    serving_app,
    told_in_time,
)
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with serving(FakeModel()) as found:
        yield found


@pytest.fixture(scope="module")
def impatient() -> Iterator[tuple[str, int]]:
    """A server that waits for its clients for a fifth of a second."""
    with serving(FakeModel(), client_timeout_seconds=0.2) as found:
        yield found


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        request("Content-Length: -1"),
        request("Content-Length: 5", "Content-Length: 6"),
        request("Transfer-Encoding: chunked", body=b"zz\r\n"),
        request("Transfer-Encoding: chunked", LENGTH),
        request("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        request("Transfer-Encoding: chunked, identity"),
        request("X: a", " folded", LENGTH),
        request(LENGTH, line="BREW /predict HTTP/1.1"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_json(address: tuple[str, int], sent: bytes) -> None:
    status, document = ask(address, sent)
    assert (status, document) == (400, {"error": "Invalid HTTP request received"})


@pytest.mark.parametrize(
    "sent, status",
    [
        (request("Transfer-Encoding: gzip, chunked"), 501),
        (request("Transfer-Encoding: identity"), 501),
        (request("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"), 501),
        (request("Transfer-Encoding: chunked", line="POST /predict HTTP/1.0"), 501),
        (request(line="GET /healthz HTTP/2.0"), 505),
        (b"GET /healthz\r\n\r\n", 505),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(
    address: tuple[str, int], sent: bytes, status: int
) -> None:
    assert ask(address, sent)[0] == status


@pytest.mark.parametrize("header", ["Upgrade: h2c", "upgrade: websocket", "UPGRADE: TLS/1.2"])
def test_an_upgrade_is_ignored_and_the_body_is_not_lost(address: tuple[str, int], header: str) -> None:
    status, document = ask(address, request("Connection: Upgrade, HTTP2-Settings", header, LENGTH))
    assert (status, document.get("predictions")) == (200, [3.0])


def test_an_upgrade_is_ignored_however_its_bytes_come(address: tuple[str, int]) -> None:
    sent = request("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", LENGTH) * 2
    with socket.create_connection(address, timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(sent)):
            connection.sendall(sent[index : index + 1])
        for _ in range(2):
            assert read_answer(connection)[1]["predictions"] == [3.0]


def test_a_body_that_speaks_of_upgrades_is_left_alone(address: tuple[str, int]) -> None:
    body = b'{"signature_name": "echo", "inputs": ["Upgrade: h2c"]}'
    status, document = ask(address, request(f"Content-Length: {len(body)}", body=body))
    assert (status, document["outputs"]) == (200, {"text": ["Upgrade: h2c"]})


def test_who_closes_his_side_after_asking_gets_his_answer() -> None:
    model = FakeModel()
    model.may_answer.clear()
    with serving(model) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request(LENGTH))
        connection.shutdown(socket.SHUT_WR)
        threading.Timer(0.2, model.may_answer.set).start()
        assert read_answer(connection)[1]["predictions"] == [3.0]
        assert connection.recv(1) == b""


def test_who_closes_his_side_in_the_middle_is_hung_up_on(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request("Content-Length: 100"))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


@pytest.mark.parametrize("sent", [b"POST /predict HT", request("Content-Length: 100")])
def test_who_does_not_go_on_is_not_waited_for(impatient: tuple[str, int], sent: bytes) -> None:
    with answered_before(impatient) as connection:
        connection.sendall(sent)
        problem = "the rest of the request did not come within 0.2 seconds"
        assert read_answer(connection) == (408, {"error": problem})


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_who_never_begins_to_ask_is_hung_up_on_without_a_word(
    impatient: tuple[str, int], sent: bytes
) -> None:
    # He may be hung up on before he has sent even that.
    with socket.create_connection(impatient, timeout=30) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        assert connection.recv(1) == b""


def test_a_body_may_take_as_long_as_its_bytes_keep_coming() -> None:
    def story(go_on: Pace) -> None:
        with (
            serving(FakeModel(), client_timeout_seconds=2.5) as address,
            answered_before(address) as connection,
        ):
            connection.sendall(request(LENGTH, body=b""))
            for index in range(0, len(BODY), 2):
                threading.Event().wait(0.25)
                connection.sendall(BODY[index : index + 2])
                go_on()
            assert read_answer(connection)[1]["predictions"] == [3.0]

    told_in_time(story, seconds=1.0)


def test_a_head_has_its_time_however_its_bytes_come(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=30) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nX: ")
        for _ in range(100):
            connection.sendall(b"a")
            if select.select([connection], [], [], 0.1)[0]:
                return
    pytest.fail("the server still waits for the end of the headers")


@pytest.mark.parametrize("more", [b"\r\n", b"POST /predict HT"])
@pytest.mark.parametrize("is_one_packet", [True, False])
def test_what_comes_after_a_request_does_not_spoil_its_answer(more: bytes, is_one_packet: bool) -> None:
    model = FakeModel()
    with serving(model, client_timeout_seconds=0.2) as address, answered_before(address) as connection:
        model.may_answer.clear()
        model.is_asked.clear()
        for piece in [request(LENGTH) + more] if is_one_packet else [request(LENGTH), more]:
            connection.sendall(piece)
            assert model.is_asked.wait(LIMIT_SECONDS)
        # Longer than the server waits for the rest of a request.
        threading.Timer(0.6, model.may_answer.set).start()
        assert read_answer(connection)[1]["predictions"] == [3.0]
        if more.strip():
            assert read_answer(connection)[0] == 408


def test_slow_clients_are_answered(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        for piece in (b"POST /predict HTTP/1.1\r\nHo", b"st: x\r\nContent-Le", b"ngth: 23\r\n\r\n", BODY):
            connection.sendall(piece)
            threading.Event().wait(0.02)
        assert read_answer(connection)[1]["predictions"] == [3.0]
        connection.sendall(request(LENGTH))
        assert read_answer(connection)[1]["predictions"] == [3.0]


def test_the_rest_of_a_body_that_was_refused_is_not_answered_a_second_time(
    impatient: tuple[str, int],
) -> None:
    with answered_before(impatient) as connection:
        connection.sendall(request(f"Content-Length: {2**30}"))
        assert read_answer(connection)[0] == 413
        assert connection.recv(1) == b""


def test_who_has_his_answer_may_ask_again_later(impatient: tuple[str, int]) -> None:
    with answered_before(impatient) as connection:
        for _ in range(2):
            threading.Event().wait(0.4)
            connection.sendall(request(LENGTH))
            assert read_answer(connection)[1]["predictions"] == [3.0]


def test_an_idle_connection_is_kept_longer_than_load_balancers_keep_theirs() -> None:
    """Else one that sends a request just as we hang up is told that the connection was reset."""
    app = application(FakeModel())
    assert configure(app, stop_seconds=1, limits=app.state.limits).timeout_keep_alive > 60


def test_headers_without_end_are_refused(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nX: ")
        for _ in range(4):
            connection.sendall(b"a" * (MAX_HEAD_BYTES // 3))
        assert read_answer(connection) == (431, {"error": "the headers are larger than 65536 bytes"})


@pytest.mark.parametrize("path", ["/", "/model/version", "/readyz", "/healthz", "/openapi.json"])
def test_a_head_is_there_wherever_a_get_is(address: tuple[str, int], path: str) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request("Connection: close", body=b"", line=f"HEAD {path} HTTP/1.1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


def test_a_head_is_answered_although_the_connection_stays_open(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request(body=b"", line="HEAD /healthz HTTP/1.1"))
        assert connection.recv(65536).endswith(b"\r\n\r\n")
        connection.sendall(request(LENGTH))
        assert read_answer(connection)[1]["predictions"] == [3.0]


def received_packets(connection: socket.socket) -> int:
    """Those that carried data: tcpi_data_segs_in of Linux."""
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return int.from_bytes(information[152:156], sys.byteorder)


def test_an_answer_is_one_packet(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        for number in (1, 2, 3):
            connection.sendall(request(LENGTH))
            assert read_answer(connection)[1]["predictions"] == [3.0]
            assert received_packets(connection) == number


def test_who_asks_whether_to_go_on_is_told_so_before_the_answer(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request(LENGTH, "Expect: 100-continue", body=b""))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_answer(connection)[1]["predictions"] == [3.0]


def test_who_asks_whether_to_go_on_and_is_refused_is_hung_up_on(address: tuple[str, int]) -> None:
    """His next request would be taken for the body that he keeps to himself."""
    with socket.create_connection(address, timeout=30) as connection:
        asking = ("Expect: 100-continue", "Content-Length: 200")
        connection.sendall(request(*asking, body=b"", line="POST /nowhere HTTP/1.1"))
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert connection.recv(1) == b""


def answer_late(model: FakeModel, asking: socket.socket) -> None:
    """Not before the one who asked was told something else."""
    select.select([asking], [], [], 30)
    model.may_answer.set()


def test_a_request_whose_time_is_over_when_the_server_stops_is_told_so() -> None:
    model = FakeModel()
    model.may_answer.clear()
    app = application(model)
    with socket.socket() as asking, socket.socket() as half:
        with serving_app(app, stop_seconds=1) as address:
            for connection, sent in ((asking, request(LENGTH)), (half, request("Content-Length: 100"))):
                connection.settimeout(30)
                connection.connect(address)
                connection.sendall(sent)
            wait_until(lambda: app.state.limits.buffered.bytes == 2 * len(BODY), "both have been heard")
            assert model.is_asked.wait(LIMIT_SECONDS)
            threading.Thread(target=answer_late, args=(model, asking)).start()
        for connection in (asking, half):
            assert read_answer(connection) == (503, {"error": "the server is stopping. ask another one"})
