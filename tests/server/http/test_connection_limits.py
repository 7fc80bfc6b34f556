"""What clients can make the server hold, over real sockets: neither one connection nor all of them without limit."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hotdelta.errors import OverloadedError
from server.http.connection_limits import BufferedBytes, Refusals
from server.http.listening import allow_files
from server.http.protocol import MAX_HEAD_BYTES, MAX_HEADERS
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
from tests.waiting import wait_until

MIB = 2**20
VERSION = request(line="GET /model/version HTTP/1.1", body=b"")
PREDICT = request(LENGTH)
CHUNKED = "Transfer-Encoding: chunked"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
# What the two ends of a connection on loopback may have in the buffers of the operating system, and some more.
MOST_IN_BUFFERS = 16 * MIB


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with serving(FakeModel()) as found:
        yield found


def flood(connection: socket.socket, address: tuple[str, int], sent: bytes, *, size: int) -> int:
    """How many bytes a server took of somebody who never reads: all, or those until it has better things to do."""
    connection.setblocking(False)
    count, sent = 0, sent * (MIB // len(sent))
    with answered_before(address) as other:
        while count < size:
            with contextlib.suppress(BlockingIOError):
                count += connection.send(sent)
                continue
            for _ in range(50):
                # The server has had time for this, and so for what the flood waits for.
                other.sendall(PREDICT)
                assert read_answer(other)[0] == 200
            if not select.select([], [connection], [], 0)[1]:
                return count
    return count


@pytest.mark.parametrize("sent", [VERSION, PREDICT, request(line="GET /openapi.json HTTP/1.1", body=b"")])
def test_who_takes_no_answers_is_not_read_from(address: tuple[str, int], sent: bytes) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        assert flood(connection, address, sent, size=3 * MOST_IN_BUFFERS) < MOST_IN_BUFFERS


def test_pipelined_requests_wait_unread_for_the_answer_to_the_first() -> None:
    model = FakeModel()
    with serving(model) as address, socket.create_connection(address) as connection:
        model.may_answer.clear()
        connection.sendall(PREDICT)
        assert model.is_asked.wait(30)
        connection.setblocking(False)
        count = 0
        while count < 3 * MOST_IN_BUFFERS:
            try:
                count += connection.send(VERSION * 1000)
            except BlockingIOError:
                for _ in range(50):
                    assert ask(address, VERSION)[0] == 200
                if not select.select([], [connection], [], 0)[1]:
                    break
        model.may_answer.set()
        assert count < MOST_IN_BUFFERS
        connection.setblocking(True)
        assert read_answer(connection)[1]["predictions"] == [3.0]


@pytest.mark.parametrize("pieces", [1, 7])
def test_pipelined_requests_are_answered_in_order(address: tuple[str, int], pieces: int) -> None:
    bodies = [b'{"instances": [[%d, %d]]}' % (number, number % 7) for number in range(90)]
    sent = b"".join(request(f"Content-Length: {len(body)}", body=body) for body in bodies)
    with socket.create_connection(address, timeout=30) as connection:
        for start in range(0, len(sent), len(sent) // pieces + 1):
            connection.sendall(sent[start : start + len(sent) // pieces + 1])
        for number in range(90):
            assert read_answer(connection)[1]["predictions"] == [float(number + number % 7)]


def test_what_is_refused_waits_for_the_answers_before_it(address: tuple[str, int]) -> None:
    late = request(CHUNKED, body=b"zz\r\n")
    for refused in (b"BREW / HTTP/1.1\r\n\r\n", request("Content-Length: -1"), late):
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(PREDICT * 2 + refused + PREDICT)
            for _ in range(2):
                assert read_answer(connection)[1]["predictions"] == [3.0]
            assert read_answer(connection)[0] == 400
            assert connection.recv(1) == b""


def test_who_closes_his_side_after_several_requests_gets_all_answers(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(PREDICT * 100)
        connection.shutdown(socket.SHUT_WR)
        for _ in range(100):
            assert read_answer(connection)[1]["predictions"] == [3.0]
        assert connection.recv(1) == b""


def test_who_is_hung_up_on_while_several_of_his_requests_wait_leaves_no_trace_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def story(go_on: Pace) -> None:
        with serving(FakeModel(), client_timeout_seconds=0.2) as address, socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.connect(address)
            connection.sendall(request(line="GET /openapi.json HTTP/1.1", body=b"") * 12_000)
            go_on()
            # Reset: he takes nothing, and there is more that nobody has read.
            reset = select.poll()
            reset.register(connection, 0)
            assert reset.poll(30_000)

    told_in_time(story, seconds=0.1)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def echo(size: int, *headers: str) -> bytes:
    body = b'{"signature_name": "echo", "inputs": ["%b"]}' % (b"a" * size)
    return request(f"Content-Length: {len(body)}", *headers, body=body)


@pytest.mark.parametrize("headers", [[], ["Connection: close"]])
def test_who_takes_nothing_of_his_answer_is_hung_up_on(headers: list[str]) -> None:
    size = 15 * MIB

    def story(go_on: Pace) -> None:
        with (
            serving(FakeModel(), client_timeout_seconds=0.2, max_buffered_bytes=20 * MIB) as address,
            answered_before(address) as connection,
        ):
            go_on()
            connection.sendall(echo(size, *headers))
            go_on()
            connection.recv(1)
            go_on()
            # There is no place for that beside what he does not take.
            while ask(address, request(f"Content-Length: {size}", body=BODY.ljust(size)))[0] == 503:
                go_on()
            count = 1
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(MIB):
                    count += len(piece)
            assert count < size

    told_in_time(story, seconds=0.1)


def test_who_takes_nothing_of_his_answer_is_not_idle() -> None:
    with serving(FakeModel(), max_connections=1) as address, answered_before(address) as connection:
        connection.sendall(echo(15 * MIB))
        connection.recv(1)
        with socket.create_connection(address, timeout=30) as other:
            assert other.recv(65536).startswith(b"HTTP/1.1 503 ")


def test_who_takes_his_answer_slowly_is_hung_up_on_when_there_is_no_place_for_others() -> None:
    size = 15 * MIB

    def story(go_on: Pace) -> None:
        with (
            serving(FakeModel(), client_timeout_seconds=3, max_buffered_bytes=16 * MIB) as address,
            answered_before(address) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(echo(size))
            for _ in range(8):
                assert len(stream.read(MIB // 2)) == MIB // 2
                threading.Event().wait(0.45)
                go_on()
            large = request(f"Content-Length: {size}", body=BODY.ljust(size))
            assert [ask(address, large)[0] for _ in range(2)] == [503, 200]

    told_in_time(story, seconds=1.5)


@pytest.mark.parametrize(
    "limit", [{"max_buffered_bytes": MIB}, {"max_connections": 1}], ids=["bytes", "connections"]
)
def test_who_sends_his_body_slowly_is_hung_up_on_when_there_is_no_place_for_others(
    limit: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    small = request("Content-Length: 20000", body=BODY.ljust(20_000))
    # Long enough that he is not late before the first of the others asks.
    options: dict[str, Any] = {"max_body_bytes": MIB, "client_timeout_seconds": 3, **limit}

    def story(go_on: Pace) -> None:
        caplog.clear()
        app = application(FakeModel(), **options)
        with serving_app(app) as address, answered_before(address) as slow:
            slow.sendall(request(f"Content-Length: {MIB}", body=BODY.ljust(MIB - 10_000)))
            # Before that one of the others may find a place, and then he is the one that has none.
            wait_until(lambda: app.state.limits.buffered.bytes == MIB - 10_000, "his body is there")
            for wanted in (False, True):
                assert is_answered(address, small, slow, wanted=wanted, go_on=go_on)

    told_in_time(story, seconds=1.5)
    said = [
        record.getMessage() for record in caplog.records if record.name == "server.http.connection_limits"
    ]
    ((name, value),) = limit.items()
    assert said == [f"clients are refused limit=--{name.replace('_', '-')} value={value} refused=1"]


def is_answered(
    address: tuple[str, int], sent: bytes, slow: socket.socket, *, wanted: bool, go_on: Pace
) -> bool:
    """Whether that comes about while somebody sends a byte now and then."""
    for _ in range(300):
        go_on()
        with contextlib.suppress(ConnectionError):
            slow.sendall(b" ")
        status = 0
        # Who is one too many may be gone before he has sent anything.
        with contextlib.suppress(ConnectionError, IndexError):
            status = ask(address, sent)[0]
        if (status == 200) is wanted:
            return True
        threading.Event().wait(0.02)
    return False


def test_an_answer_may_take_as_long_as_it_is_being_taken() -> None:
    def story(go_on: Pace) -> None:
        with (
            serving(FakeModel(), client_timeout_seconds=3) as address,
            answered_before(address) as connection,
        ):
            connection.sendall(echo(15 * MIB))
            count = 0
            for part in range(1, 16):
                while count < part * MIB:
                    piece = connection.recv(MIB)
                    assert piece
                    count += len(piece)
                if part < 10:
                    threading.Event().wait(0.45)
                go_on()

    told_in_time(story, seconds=1.5)


def test_bodies_of_all_connections_together_have_a_limit() -> None:
    with (
        serving(FakeModel(), max_body_bytes=MIB, max_buffered_bytes=2 * MIB) as address,
        ExitStack() as stack,
    ):
        halves = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(3)]
        for connection in halves:
            connection.sendall(
                request(f"Content-Length: {MIB}", body=BODY + b" " * (MIB * 3 // 4 - len(BODY)))
            )
        (refused,) = select.select(halves, [], [], 30)[0]
        status, document = read_answer(refused)
        assert status == 503
        assert "wait already. try again, or ask another server" in document["error"]
        # Small ones still fit, and who was in time gets his answer.
        assert ask(address, PREDICT)[0] == 200
        for connection in halves:
            if connection is not refused:
                connection.sendall(b" " * (MIB // 4))
                assert read_answer(connection)[1]["predictions"] == [3.0]
        # All is given back: by those who were answered, who were refused, and who hung up.
        assert ask(address, request(f"Content-Length: {MIB}", body=BODY.ljust(MIB)))[0] == 200


def test_what_is_given_back_can_be_taken_again() -> None:
    buffered = BufferedBytes(10)
    buffered.take(6)
    buffered.add(5)
    with pytest.raises(OverloadedError):
        buffered.take(1)
    buffered.give_back(6)
    buffered.take(5)


def test_refusals_are_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = [1000.0, 1001.0, 1059.0, 1060.0, 1061.0]
    refusals = Refusals("--max-connections", 7, clock=iter(times).__next__)
    for _ in times:
        refusals.add()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"clients are refused limit=--max-connections value=7 refused={count}" for count in (1, 3)
    ]


def test_for_one_connection_more_than_allowed_the_idlest_is_closed() -> None:
    with serving(FakeModel(), max_connections=2) as address, answered_before(address) as idlest:
        # The event loop counts milliseconds.
        threading.Event().wait(0.02)
        with answered_before(address) as idle, answered_before(address):
            assert idlest.recv(1) == b""
            idle.sendall(PREDICT)
            assert read_answer(idle)[0] == 200


@pytest.mark.parametrize("path, status", [("/predict", 413), ("/nowhere", 404), ("/model/resume", 403)])
def test_who_was_answered_before_his_body_came_is_idle_after_it(path: str, status: int) -> None:
    with (
        serving(FakeModel(), max_connections=2, max_body_bytes=1024) as address,
        answered_before(address) as other,
        socket.create_connection(address, timeout=30) as early,
    ):
        early.sendall(request("Content-Length: 2000", body=b"", line=f"POST {path} HTTP/1.1"))
        assert read_answer(early)[0] == status
        early.sendall(b" " * 2000)
        for _ in range(20):
            # The server has had time for this, and so for the body.
            other.sendall(PREDICT)
            assert read_answer(other)[0] == 200
        assert ask(address, PREDICT)[0] == 200
        other.sendall(PREDICT)
        assert other.recv(1, socket.MSG_PEEK)
        assert early.recv(1) == b""


def test_a_connection_too_many_is_told_so_when_nobody_is_idle() -> None:
    model = FakeModel()
    with serving(model, max_connections=1) as address, answered_before(address) as busy:
        model.may_answer.clear()
        model.is_asked.clear()
        busy.sendall(PREDICT)
        assert model.is_asked.wait(30)
        with socket.create_connection(address, timeout=30) as other:
            answer = other.recv(65536)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert answer.endswith(b'{"error":"1 connections are open. try again later"}')
        model.may_answer.set()
        assert read_answer(busy)[0] == 200


def test_the_system_is_asked_for_as_many_open_files_as_there_may_be_connections() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        allow_files(1000)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1000 + 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


LARGE = b"a" * MAX_HEAD_BYTES


@pytest.mark.parametrize(
    "body, problem",
    [
        (CHUNK + b"0\r\nX: " + LARGE + LARGE, "trailers or chunk extensions are larger than 65536 bytes"),
        (CHUNK + b"0\r\n" + b"X: a\r\n" * 20_000, f"there are more than {MAX_HEADERS} trailers"),
        (CHUNK + b"5;" + LARGE + LARGE, "trailers or chunk extensions are larger than 65536 bytes"),
        (b"0" * 2 * MAX_HEAD_BYTES, "trailers or chunk extensions are larger than 65536 bytes"),
    ],
)
def test_what_stands_between_and_behind_chunks_has_a_limit(
    address: tuple[str, int], body: bytes, problem: str
) -> None:
    assert ask(address, request(CHUNKED, body=body)) == (431, {"error": problem})


def test_headers_have_a_limit_in_number(address: tuple[str, int]) -> None:
    assert ask(address, request(*["X: a"] * MAX_HEADERS, LENGTH))[0] == 431
    assert ask(address, request(*["X: a"] * (MAX_HEADERS - 2), LENGTH))[0] == 200


def test_blank_lines_before_a_request_have_a_limit(address: tuple[str, int]) -> None:
    assert ask(address, b"\r\n" * MAX_HEAD_BYTES)[0] == 431
    assert ask(address, b"\r\n" * 100 + PREDICT)[0] == 200


@pytest.mark.parametrize("size", [1, 700])
def test_chunks_may_be_small_and_many(address: tuple[str, int], size: int) -> None:
    body = BODY + b" " * 200_000
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    sent = b"".join(b"%x;name=value\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request(CHUNKED, body=sent + b"0\r\nX-Sum: 1\r\n\r\n") + PREDICT)
        for _ in range(2):
            assert read_answer(connection)[1]["predictions"] == [3.0]


def test_trailers_are_no_headers(tmp_path: Path) -> None:
    """An order whose token comes in a trailer has none."""
    body = b"2\r\n{}\r\n0\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n"
    sent = request(CHUNKED, line="POST /model/resume HTTP/1.1", body=body)
    tokens = tmp_path / "tokens"
    tokens.write_text("ops:0123456789abcdef\n")
    with serving(FakeModel(), admin_token_file=tokens) as address:
        assert ask(address, sent)[0] == 401
