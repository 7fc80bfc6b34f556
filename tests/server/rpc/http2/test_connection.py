"""HTTP/2 by hand: what a client may do is answered; what it may not do ends its stream, or its connection."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server.rpc.http2 import frames
from server.rpc.http2.frames import NUMBER, ErrorCode, frame
from server.rpc.messages import kind
from tests.server.conftest import Serve
from tests.server.connections import serving_rpc
from tests.server.fake_model import FakeModel
from tests.server.rpc.http2.raw_client import INFER, LIVE, RawClient, data, message_of
from tests.server.rpc.test_listening import address_of, question
from tests.waiting import LIMIT_SECONDS, wait_until

ENDS = frames.END_HEADERS | frames.END_STREAM


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_rpc(FakeModel()) as address:
        yield address


def scores_of(answered: Any) -> list[float]:
    response = kind("inference.ModelInferResponse").FromString(answered.content[5:])
    return list(response.outputs[0].contents.fp32_contents)


def goodbye(client: RawClient) -> int:
    """Why the server hangs up."""
    got = client.until(frames.GOAWAY)
    assert got is not None
    assert client.until() is None, "it does not hang up"
    return got.code


def test_calls_of_one_connection_are_answered_each_under_its_number(address: str) -> None:
    with RawClient(address) as client:
        for stream in (1, 3, 5):
            client.call(stream, question(stream, stream))
        client.send(frame(frames.PING, 0, b"12345678"))
        assert [scores_of(client.answer(stream)) for stream in (1, 3, 5)] == [[2.0], [6.0], [10.0]]


def test_a_message_may_come_byte_by_byte(address: str) -> None:
    with RawClient(address) as client:
        written = b"".join([client.headers(1), *data(1, question(1, 2), piece=1)])
        for byte in written:
            client.send(bytes((byte,)))
        assert scores_of(client.answer(1)) == [3.0]


def test_headers_may_be_cut_padded_and_have_a_priority(address: str) -> None:
    with RawClient(address) as client:
        block = client.block()
        first = b"\x03" + b"\x00\x00\x00\x00\x10" + block[:10] + b"\x00" * 3
        client.send(
            frame(frames.HEADERS, 1, first, flags=frames.PADDED | frames.WITH_PRIORITY),
            frame(frames.CONTINUATION, 1, block[10:20]),
            frame(frames.CONTINUATION, 1, block[20:], flags=frames.END_HEADERS),
            frame(frames.PRIORITY, 1, b"\x00" * 5),
            frame(99, 0, b"an extension"),
            frame(frames.DATA, 1, b"\x02" + message_of(question(1, 2)) + b"\x00" * 2, flags=frames.PADDED),
            # Trailers of the client.
            frame(frames.HEADERS, 1, client.block()[:0], flags=ENDS),
        )
        assert scores_of(client.answer(1)) == [3.0]


def test_pings_and_settings_are_answered(address: str) -> None:
    with RawClient(address) as client:
        client.send(frame(frames.PING, 0, b"12345678"))
        got = client.until(frames.PING)
        assert got is not None
        assert (got.payload, got.flags) == (b"12345678", frames.ACK)
        client.send(frame(frames.PING, 0, b"12345678", flags=frames.ACK))
        client.send(frames.settings_frame({frames.MAX_FRAME_SIZE: 2**20, 0x99: 1}))
        got = client.until(frames.SETTINGS)
        assert got is not None
        assert got.flags == frames.ACK


def test_an_answer_waits_for_the_window_of_its_client(address: str) -> None:
    many = question(*[1] * 2000)
    with RawClient(address, settings={frames.INITIAL_WINDOW_SIZE: 100}) as client:
        client.call(1, many)
        got = client.until(frames.DATA)
        assert got is not None
        content = got.payload
        assert len(content) == 100
        # Another one is not held up by that, nor by a window that shrinks below nothing.
        client.send(frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 50}))
        client.send(client.headers(3, LIVE), *data(3, b""))
        assert client.answer(3).status == "0"
        client.send(frame(frames.WINDOW_UPDATE, 1, NUMBER.pack(49)), frame(frames.PING, 0, b"12345678"))
        assert client.until(frames.PING, frames.DATA).kind == frames.PING  # type: ignore[union-attr]
        client.send(frame(frames.WINDOW_UPDATE, 1, NUMBER.pack(2**20)))
        answered = client.answer(1)
    response = kind("inference.ModelInferResponse").FromString((content + answered.content)[5:])
    assert list(response.outputs[0].contents.fp32_contents) == [2.0] * 1000


def test_an_answer_waits_for_the_window_of_the_connection(address: str) -> None:
    with RawClient(address, settings={frames.INITIAL_WINDOW_SIZE: 2**20}) as client:
        for stream in (1, 3):
            client.call(stream, question(*[1] * 30_000))
        received = ends = 0
        while received < frames.FIRST_WINDOW or ends < 2:
            got = client.until(frames.DATA, frames.HEADERS)
            assert got is not None
            ends += got.is_last
            if got.kind == frames.DATA:
                received += len(got.payload)
                if received == frames.FIRST_WINDOW:
                    assert ends < 2
                    client.send(frame(frames.WINDOW_UPDATE, 0, NUMBER.pack(2**20)))
        assert received > 2 * 4 * 15_000


def test_a_large_message_gets_its_windows_as_it_comes() -> None:
    with (
        serving_rpc(FakeModel(), max_body_bytes=2**24) as address,
        RawClient(address, settings={frames.INITIAL_WINDOW_SIZE: 2**24}) as client,
    ):
        client.send(frame(frames.WINDOW_UPDATE, 0, NUMBER.pack(2**24)))
        sent = 0
        windows = {0: frames.FIRST_WINDOW, 1: 0}
        first = client.next()
        assert first is not None
        assert first.kind == frames.SETTINGS
        told = dict(frames.read_settings(first.payload))
        windows[1] = told[frames.INITIAL_WINDOW_SIZE]
        client.send(client.headers(1))
        for each in data(1, question(1, 2, id="x" * 6_000_000)):
            size = len(each) - frames.HEAD_BYTES
            while min(windows.values()) < size:
                got = client.until(frames.WINDOW_UPDATE)
                assert got is not None
                windows[got.stream] += NUMBER.unpack(got.payload)[0]
            client.send(each)
            sent += size
            windows = {stream: window - size for stream, window in windows.items()}
        assert scores_of(client.answer(1)) == [3.0]
        assert sent > 6_000_000


WRONG: dict[str, tuple[Callable[[RawClient], list[bytes]], ErrorCode]] = {
    "a frame that is too large": (
        lambda _: [frame(frames.DATA, 1, b"x" * 16_385)],
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "data of a stream that never was": (lambda _: [frame(frames.DATA, 7, b"x")], ErrorCode.PROTOCOL_ERROR),
    "data of no stream": (lambda _: [frame(frames.DATA, 0, b"x")], ErrorCode.PROTOCOL_ERROR),
    "a stream of an even number": (lambda client: [client.headers(2)], ErrorCode.PROTOCOL_ERROR),
    "a number again": (lambda client: [client.headers(3), client.headers(1)], ErrorCode.PROTOCOL_ERROR),
    "headers in the middle": (
        lambda client: [client.headers(1), client.headers(1)],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "another frame before the headers end": (
        lambda client: [client.headers(1, flags=0), frame(frames.PING, 0, b"12345678")],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "headers that go on and on": (
        lambda client: [client.headers(1, flags=0), *[frame(frames.CONTINUATION, 1, b"")] * 100],
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "headers that are too long": (
        lambda client: [client.headers(1, flags=0), *[frame(frames.CONTINUATION, 1, b"x" * 10_000)] * 2],
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a continuation of nothing": (lambda _: [frame(frames.CONTINUATION, 1)], ErrorCode.PROTOCOL_ERROR),
    "headers that cannot be unpacked": (
        lambda _: [frame(frames.HEADERS, 1, b"\xff\xff\xff\xff", flags=frames.END_HEADERS)],
        ErrorCode.COMPRESSION_ERROR,
    ),
    "more headers than anybody needs": (
        lambda client: [client.headers(1, more="x" * 16_300)],
        ErrorCode.COMPRESSION_ERROR,
    ),
    "more padding than frame": (
        lambda client: [client.headers(1), frame(frames.DATA, 1, b"\x09x", flags=frames.PADDED)],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "data behind the end": (
        lambda client: [client.headers(1), *[frame(frames.DATA, 1, b"\x00", flags=frames.END_STREAM)] * 2],
        ErrorCode.STREAM_CLOSED,
    ),
    "a push": (lambda _: [frame(frames.PUSH_PROMISE, 1, b"\x00" * 4)], ErrorCode.PROTOCOL_ERROR),
    "a ping of another size": (lambda _: [frame(frames.PING, 0, b"1")], ErrorCode.PROTOCOL_ERROR),
    "settings of another size": (lambda _: [frame(frames.SETTINGS, 0, b"1")], ErrorCode.FRAME_SIZE_ERROR),
    "settings of a stream": (lambda _: [frame(frames.SETTINGS, 1)], ErrorCode.PROTOCOL_ERROR),
    "a window that is too large": (
        lambda _: [frame(frames.WINDOW_UPDATE, 0, NUMBER.pack(2**31 - 1))],
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a first window that is too large": (
        lambda _: [frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 2**31})],
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "frames that are too small": (
        lambda _: [frames.settings_frame({frames.MAX_FRAME_SIZE: 100})],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "nothing, again and again": (
        lambda client: [client.headers(1), *[frame(frames.DATA, 1)] * 2000],
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_who_does_not_keep_to_the_protocol_is_told_why_and_hung_up_on(address: str, name: str) -> None:
    make, code = WRONG[name]
    with RawClient(address) as client:
        with_errors_ignored(client.send, *make(client))
        assert goodbye(client) == code
    with RawClient(address) as other:
        other.call(1, question(1, 2))
        assert scores_of(other.answer(1)) == [3.0]


def with_errors_ignored(send: Callable[..., None], *written: bytes) -> None:
    """The server may hang up before it has read all."""
    with contextlib.suppress(OSError):
        send(*written)


@pytest.mark.parametrize("preface", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02", b"PRI * HTTP/1.0\r\n"])
def test_what_is_no_http2_is_told_so(address: str, preface: bytes) -> None:
    with RawClient(address, preface=b"") as client:
        client.send(preface)
        assert goodbye(client) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        [(":method", "POST"), (":path", INFER), ("Upper", "x")],
        [(":method", "POST"), (":path", INFER), (":strange", "x")],
        [(":method", "POST"), ("te", "trailers"), (":path", INFER)],
        [(":method", "POST"), (":path", INFER), (":path", INFER)],
        [(":method", "POST"), ("te", "trailers")],
    ],
)
def test_headers_that_no_request_has_end_their_stream_alone(
    address: str, fields: list[tuple[str, str]]
) -> None:
    with RawClient(address) as client:
        client.send(frame(frames.HEADERS, 1, client.encoder.encode(fields), flags=ENDS))
        got = client.until(frames.RST_STREAM)
        assert got is not None
        assert (got.stream, got.code) == (1, ErrorCode.PROTOCOL_ERROR)
        client.call(3, question(1, 2))
        assert scores_of(client.answer(3)) == [3.0]


def test_what_is_no_grpc_is_said_to_be_none(address: str) -> None:
    with RawClient(address) as client:
        client.send(client.headers(1, content_type="application/json", flags=ENDS))
        assert client.answer(1).metadata[":status"] == "415"


def test_an_unknown_compression_is_refused_with_those_that_are_known(address: str) -> None:
    with RawClient(address) as client:
        client.call(1, question(1, 2), grpc_encoding="zstd")
        answered = client.answer(1)
        assert (answered.status, answered.metadata["grpc-accept-encoding"]) == ("12", "identity,gzip,deflate")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
def test_what_is_not_compressed_as_it_says_is_refused(address: str, encoding: str) -> None:
    with RawClient(address) as client:
        client.send(client.headers(1, grpc_encoding=encoding))
        client.send(frame(frames.DATA, 1, b"\x01\x00\x00\x00\x03abc", flags=frames.END_STREAM))
        assert client.answer(1).status == "3"


def test_half_a_message_is_refused(address: str) -> None:
    with RawClient(address) as client:
        client.send(
            client.headers(1), frame(frames.DATA, 1, b"\x00\x00\x00\x00\x09abc", flags=frames.END_STREAM)
        )
        answered = client.answer(1)
        assert (answered.status, answered.metadata["grpc-message"]) == ("3", "the message is not complete")


def test_a_reason_may_have_any_letters(address: str) -> None:
    with RawClient(address) as client:
        client.send(client.headers(1, "/ö%\n/x".encode().decode("latin-1"), flags=ENDS))
        assert client.answer(1).status == "12"


def test_who_takes_back_calls_all_the_time_is_hung_up_on(address: str) -> None:
    with RawClient(address) as client, contextlib.suppress(OSError):
        cancel = NUMBER.pack(ErrorCode.CANCEL)
        for stream in range(1, 200_001, 2):
            client.send(client.headers(stream), frame(frames.RST_STREAM, stream, cancel))
        raise AssertionError("it takes any number")
    with RawClient(address) as client:
        client.call(1, question(1, 2))
        assert scores_of(client.answer(1)) == [3.0]


def test_calls_that_are_taken_back_hold_nothing(serve: Serve, model: FakeModel) -> None:
    client = serve(grpc_port=0, max_connections=2, max_body_bytes=2**20, max_buffered_bytes=2**20)
    held = client.app.state.limits.buffered  # type: ignore[attr-defined]
    model.may_answer.clear()
    with RawClient(address_of(client)) as raw:
        for stream in (1, 3):
            raw.send(raw.headers(stream), *data(stream, question(1, 2, id="x" * 300_000)))
        wait_until(lambda: held.bytes > 600_000, lambda: held.bytes)
        for stream in (1, 3):
            raw.send(frame(frames.RST_STREAM, stream, NUMBER.pack(ErrorCode.CANCEL)))
        wait_until(lambda: held.bytes == 0, lambda: held.bytes)
        model.may_answer.set()
        raw.call(5, question(1, 2))
        assert scores_of(raw.answer(5)) == [3.0]
    wait_until(lambda: held.bytes == 0, lambda: held.bytes)


def test_an_answer_that_is_not_taken_counts_and_who_takes_none_is_hung_up_on(serve: Serve) -> None:
    client = serve(grpc_port=0, client_timeout_seconds=0.5)
    held = client.app.state.limits.buffered  # type: ignore[attr-defined]
    with RawClient(address_of(client), settings={frames.INITIAL_WINDOW_SIZE: 10}) as raw:
        raw.call(1, question(*[1] * 20_000))
        got = raw.until(frames.DATA)
        assert got is not None
        assert held.bytes > 30_000
        assert raw.until() is None
    wait_until(lambda: held.bytes == 0, lambda: held.bytes)


def test_who_says_nothing_is_hung_up_on(serve: Serve) -> None:
    client = serve(grpc_port=0, client_timeout_seconds=0.3)
    with RawClient(address_of(client), preface=b"") as raw:
        raw.send(frames.PREFACE[:10])
        assert raw.until() is None


def test_an_idle_connection_makes_way_for_a_new_one_and_a_busy_one_does_not(
    serve: Serve, model: FakeModel
) -> None:
    address = address_of(serve(grpc_port=0, max_connections=2))
    model.may_answer.clear()
    with RawClient(address) as busy, RawClient(address) as idle, contextlib.ExitStack() as stack:
        busy.call(1, question(1, 2))
        assert model.is_asked.wait(LIMIT_SECONDS)
        idle.call(1, b"", LIVE)
        assert idle.answer(1).status == "0"
        newest = stack.enter_context(RawClient(address))
        assert goodbye(idle) == ErrorCode.NO_ERROR
        newest.call(1, question(3, 4))
        refused = stack.enter_context(RawClient(address, preface=b""))
        assert goodbye(refused) == ErrorCode.ENHANCE_YOUR_CALM
        model.may_answer.set()
        assert (scores_of(busy.answer(1)), scores_of(newest.answer(1))) == ([3.0], [7.0])


def test_a_client_that_hangs_up_in_the_middle_leaves_nothing(serve: Serve) -> None:
    client = serve(grpc_port=0)
    held = client.app.state.limits.buffered  # type: ignore[attr-defined]
    for cut in (5, 30, 60, 200):
        raw = RawClient(address_of(client))
        raw.send(b"".join([raw.headers(1), *data(1, question(1, 2, id="x" * 1000))])[:cut])
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        raw.socket.close()
    wait_until(lambda: held.bytes == 0, lambda: held.bytes)
    with RawClient(address_of(client)) as raw:
        raw.call(1, question(1, 2))
        assert scores_of(raw.answer(1)) == [3.0]
