"""The port for gRPC: its limits, what it does with those who give up, and how it stops."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from starlette.testclient import TestClient

from hotdelta.errors import ConfigurationError
from server.rpc.messages import kind
from tests.server.application import application
from tests.server.conftest import Serve
from tests.server.connections import serving_rpc
from tests.server.fake_model import FakeModel
from tests.server.metrics.scrape import scrape
from tests.waiting import LIMIT_SECONDS, wait_until

INFER = "/inference.GRPCInferenceService/ModelInfer"


def infer(channel: grpc.Channel) -> Any:
    """What calls a model, as bytes."""
    return channel.unary_unary(INFER)


def question(*ids: int, **more: Any) -> bytes:
    tensor = {
        "name": "ids",
        "datatype": "INT64",
        "shape": [len(ids) // 2, 2],
        "contents": {"int64_contents": ids},
    }
    request = kind("inference.ModelInferRequest")(model_name="fake", inputs=[tensor], **more)
    written: bytes = request.SerializeToString()
    return written


def address_of(client: TestClient) -> str:
    return str(client.app.state.rpc.address)  # type: ignore[attr-defined]


def counted(client: TestClient, status: str) -> float:
    labels = {"protocol": "open_inference_grpc", "status": status}
    return scrape(client).get("hotdelta_requests_total", **labels) or 0


def refusal(call: Any, body: Any, **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as refused:
        call(body, timeout=options.pop("timeout", LIMIT_SECONDS), **options)
    return refused.value


def test_a_message_may_be_as_large_as_a_body_of_http() -> None:
    with (
        serving_rpc(FakeModel(), max_body_bytes=10_000) as address,
        grpc.insecure_channel(address) as channel,
    ):
        infer(channel)(question(*[1] * 2000), timeout=LIMIT_SECONDS)
        error = refusal(infer(channel), question(*[1] * 20_000))
        with grpc.insecure_channel(address, compression=grpc.Compression.Gzip) as compressing:
            infer(compressing)(question(*[1] * 2000), timeout=LIMIT_SECONDS)
            bomb = refusal(infer(compressing), question(*[1] * 2_000_000))

    for each in (error, bomb):
        assert each.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than 10000 bytes" in each.details()


def test_what_is_no_message_is_refused() -> None:
    with serving_rpc(FakeModel()) as address, grpc.insecure_channel(address) as channel:
        error = refusal(infer(channel), b"\xff")
        unknown = refusal(channel.unary_unary("/other.Service/Ask"), b"")

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the message is no inference.ModelInferRequest" in error.details()
    assert unknown.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "there is no service other.Service. Services: tensorflow.serving" in unknown.details()


def test_who_gives_up_costs_no_call_of_the_model(serve: Serve, model: FakeModel) -> None:
    client = serve(grpc_port=0)
    with grpc.insecure_channel(address_of(client)) as channel:
        model.may_answer.clear()
        first = infer(channel).future(question(1, 2), timeout=LIMIT_SECONDS)
        assert model.is_asked.wait(LIMIT_SECONDS)
        second = infer(channel).future(question(3, 4, 5, 6), timeout=LIMIT_SECONDS)
        wait_until(lambda: scrape(client)["hotdelta_queue_requests"] == 1, "it waits for the model")
        second.cancel()
        wait_until(lambda: counted(client, "CANCELLED") == 1, "the server knows")
        model.may_answer.set()
        first.result()
        infer(channel)(question(5, 6), timeout=LIMIT_SECONDS)

    assert model.calls == [("serving_default", 1), ("serving_default", 1)]


def test_the_deadline_of_a_client_is_that_of_the_server(serve: Serve, model: FakeModel) -> None:
    """He learns of it by himself; the server counts one that has given up, if the call has come to it at all."""
    client = serve(grpc_port=0)

    def is_noticed() -> bool:
        error = refusal(infer(channel), question(1, 2), timeout=1)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return counted(client, "CANCELLED") > 0

    with grpc.insecure_channel(address_of(client)) as channel:
        model.may_answer.clear()
        wait_until(is_noticed, "the server knows")
        model.may_answer.set()


def test_requests_that_come_together_share_a_call(serve: Serve, model: FakeModel) -> None:
    client = serve(grpc_port=0)
    with grpc.insecure_channel(address_of(client)) as channel:
        model.may_answer.clear()
        asked = [infer(channel).future(question(1, 2), timeout=LIMIT_SECONDS)]
        assert model.is_asked.wait(LIMIT_SECONDS)
        asked += [infer(channel).future(question(1, 2), timeout=LIMIT_SECONDS) for _ in range(5)]
        wait_until(lambda: scrape(client)["hotdelta_queue_requests"] == 5, "all wait for the model")
        model.may_answer.set()
        for each in asked:
            each.result()

    assert model.calls == [("serving_default", 1), ("serving_default", 5)]


def test_more_calls_at_once_than_connections_are_refused(serve: Serve, model: FakeModel) -> None:
    client = serve(grpc_port=0, max_connections=1)
    with grpc.insecure_channel(address_of(client)) as channel:
        model.may_answer.clear()
        first = infer(channel).future(question(1, 2), timeout=LIMIT_SECONDS)
        assert model.is_asked.wait(LIMIT_SECONDS)
        error = refusal(infer(channel), question(1, 2))
        model.may_answer.set()
        first.result()

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_who_calls_and_says_nothing_does_not_hold_a_place_for_ever(serve: Serve) -> None:
    client = serve(grpc_port=0, max_connections=1, client_timeout_seconds=0.5)
    # Who ends his call at once may be slow, too.
    with serving_rpc(FakeModel()) as patient, grpc.insecure_channel(patient) as channel:
        assert refusal(channel.stream_unary(INFER), iter([])).details() == "the call has no message"
    with grpc.insecure_channel(address_of(client)) as channel:
        silence = threading.Event()

        def nothing() -> Iterator[bytes]:
            silence.wait(LIMIT_SECONDS)
            yield b""

        silent = channel.stream_unary(INFER).future(nothing(), timeout=LIMIT_SECONDS)
        error = silent.exception()
        silence.set()
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "no message came within 0.5 seconds. send it with the call"
        infer(channel)(question(1, 2), timeout=LIMIT_SECONDS)


def test_who_only_listens_takes_a_quarter_of_the_places_at_most(serve: Serve) -> None:
    client = serve(grpc_port=0, max_connections=8)
    watch = "/grpc.health.v1.Health/Watch"
    with grpc.insecure_channel(address_of(client)) as channel:
        watching = [channel.unary_stream(watch)(b"", timeout=LIMIT_SECONDS) for _ in range(2)]
        for each in watching:
            next(each)
        with pytest.raises(grpc.RpcError) as refused:
            next(channel.unary_stream(watch)(b"", timeout=LIMIT_SECONDS))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "2 streams are open" in refused.value.details()
        infer(channel)(question(1, 2), timeout=LIMIT_SECONDS)
        for each in watching:
            each.cancel()


def test_what_calls_hold_counts_with_the_bodies_of_http(serve: Serve, model: FakeModel) -> None:
    client = serve(grpc_port=0, max_body_bytes=2**20, max_buffered_bytes=2**20)
    large = question(1, 2, id="x" * 700_000)
    with grpc.insecure_channel(address_of(client)) as channel:
        model.may_answer.clear()
        first = infer(channel).future(large, timeout=LIMIT_SECONDS)
        assert model.is_asked.wait(LIMIT_SECONDS)
        error = refusal(infer(channel), large)
        by_http = client.post("/predict", content=large)
        model.may_answer.set()
        first.result()
        infer(channel)(large, timeout=LIMIT_SECONDS)

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "bytes wait already" in error.details()
    assert by_http.status_code == 503


def test_calls_are_counted_by_their_protocol_and_status(serve: Serve) -> None:
    client = serve(grpc_port=0)
    with grpc.insecure_channel(address_of(client)) as channel:
        infer(channel)(question(1, 2), timeout=LIMIT_SECONDS)
        refusal(infer(channel), question(1, 2, 3))

    for status in ("OK", "INVALID_ARGUMENT"):
        wait_until(functools.partial(counted, client, status), "it is counted")


class Started(FakeModel):
    """Tells in which event loop it was started."""

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()


def test_a_server_that_stops_answers_what_it_was_asked_and_ends_what_would_not_end(serve: Serve) -> None:
    model = Started()
    rpc = serve(model, grpc_port=0, stop_seconds=60).app.state.rpc  # type: ignore[attr-defined]
    with grpc.insecure_channel(rpc.address) as channel, grpc.insecure_channel(rpc.address) as late:
        watching = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=LIMIT_SECONDS)
        next(watching)
        model.may_answer.clear()
        asked = infer(channel).future(question(1, 2), timeout=LIMIT_SECONDS)
        assert model.is_asked.wait(LIMIT_SECONDS)
        model.loop.call_soon_threadsafe(rpc.leave)
        with pytest.raises(grpc.RpcError) as ended:
            next(watching)
        assert refusal(infer(late), question(1, 2)).code() is grpc.StatusCode.UNAVAILABLE
        model.may_answer.set()
        asked.result()

    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_call_that_the_model_does_not_answer_holds_no_server_that_stops(serve: Serve) -> None:
    model = Started()
    rpc = serve(model, grpc_port=0, stop_seconds=1).app.state.rpc  # type: ignore[attr-defined]
    with grpc.insecure_channel(rpc.address) as channel:
        model.may_answer.clear()
        asked = infer(channel).future(question(1, 2), timeout=LIMIT_SECONDS)
        assert model.is_asked.wait(LIMIT_SECONDS)
        model.loop.call_soon_threadsafe(rpc.leave)
        code = asked.exception().code()
        model.may_answer.set()

    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_a_port_that_is_taken_is_not_shared() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        app = application(FakeModel(), grpc_port=port)

        with pytest.raises(ConfigurationError, match="give another --grpc-port"):
            asyncio.run(app.state.rpc.start())


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_it_listens_where_http_does(host: str) -> None:
    with serving_rpc(FakeModel(), host=host) as address, grpc.insecure_channel(address) as channel:
        infer(channel)(question(1, 2), timeout=LIMIT_SECONDS)
