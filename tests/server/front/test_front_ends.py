"""Front-end processes in front of a fake model: what changes under them, how they end, what they count and let in."""

from __future__ import annotations

import errno
import functools
import os
import select
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from fastapi import FastAPI

from hotdelta.chain import Position, SignatureSpec, TensorSpec
from hotdelta.errors import RequestError
from loader.model.served import Version
from server.app import create_app
from server.front.settings import read_settings, share_of, told_settings
from server.served_model import Array
from server.setting_values import LabelPlace
from server.settings import Settings
from server.tls import TlsFiles
from tests.server.application import application, configuration_of
from tests.server.certificates import Certificates
from tests.server.connections import LENGTH, answered_before, read_answer, request, serving_app
from tests.server.fake_model import FakeModel
from tests.server.metrics.scrape import Scrape
from tests.server.models.fleets import OPERATOR, TOKEN, Answering, Yard, several, token_file
from tests.waiting import LIMIT_SECONDS, wait_until

Address = tuple[str, int]
ROW = {"instances": [[1, 2]]}
INFER = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}


@contextmanager
def behind(model: FakeModel, count: int = 2, /, **options: Any) -> Iterator[tuple[FastAPI, Address]]:
    """A server with so many front-ends."""
    options = {"front_ends": count, **options}
    app, settings = application(model, **options), configuration_of(**options).server
    with serving_app(app, stop_seconds=settings.stop_seconds, tls=TlsFiles.of(settings)) as address:
        yield app, address


@contextmanager
def client_of(address: Address, **options: Any) -> Iterator[httpx.Client]:
    url = f"http://{address[0]}:{address[1]}"
    with httpx.Client(**{"base_url": url, "timeout": LIMIT_SECONDS, "trust_env": False, **options}) as client:
        yield client


def scrape(client: httpx.Client) -> Scrape:
    return Scrape(client.get("/metrics").raise_for_status().text)


def signatures_of(dtype: str) -> Mapping[str, SignatureSpec]:
    inputs, outputs = TensorSpec("ids", (None, 2), dtype), TensorSpec("score", (None,), "float32")
    return {"serving_default": SignatureSpec((inputs,), (outputs,))}


@dataclass
class Swapped(FakeModel):
    """One whose export is replaced by one that wants another dtype: 3 is taken by both, and each has its own answer."""

    now: Mapping[str, SignatureSpec] = field(default_factory=lambda: signatures_of("int64"))

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        return self.now

    def predict(self, signature: str, feeds: Mapping[str, Array]) -> tuple[Mapping[str, Array], Version]:
        (wanted,) = self.now[signature].inputs
        ids = feeds["ids"]
        if ids.dtype != wanted.dtype:
            raise RequestError(f"the model wants {wanted.dtype} and was given {ids.dtype}")
        sums = ids.sum(axis=1) + (0.5 if wanted.dtype == "float32" else 0.0)
        return {"score": sums.astype(np.float32)}, Version(Position(1, 1), 10, 1)


def test_an_export_with_another_signature_takes_over_under_load_and_nobody_notices() -> None:
    model, stop = Swapped(), threading.Event()

    def ask(address: Address) -> list[Any]:
        seen = []
        with client_of(address) as client:
            while not stop.is_set():
                answer = client.post("/predict", json=ROW)
                seen.append(answer.json()["predictions"] if answer.status_code == 200 else answer.text)
        return seen

    with behind(model) as (_, address), ThreadPoolExecutor(4) as pool, client_of(address) as client:
        asking = [pool.submit(ask, address) for _ in range(4)]
        try:
            for number in range(30):
                dtype = ("float32", "int64")[number % 2]
                model.now = signatures_of(dtype)
                # What only the new one takes, and only the old one refuses.
                for value, status in ((1, 200), (1.5, 200 if dtype == "float32" else 400)):
                    answer = client.post("/predict", json={"instances": [[value, 2]]})
                    assert answer.status_code == status, answer.text
        finally:
            stop.set()
        seen = [found for task in asking for found in task.result()]

    assert {str(found) for found in seen} <= {"[3.0]", "[3.5]"}
    assert seen


def test_what_only_the_new_export_takes_is_not_refused_by_what_was_known_before() -> None:
    model = Swapped()
    with behind(model, 1) as (_, address), client_of(address) as client:
        for dtype, status in (("float32", 200), ("int64", 400), ("float32", 200)):
            model.now = signatures_of(dtype)
            assert client.post("/predict", json={"instances": [[1.5, 2]]}).status_code == status
        model.now = {"other": model.now["serving_default"]}
        answer = client.post("/predict", json={**ROW, "signature_name": "other"})
        assert (answer.status_code, answer.json()["predictions"]) == (200, [3.5])


def test_a_label_that_was_moved_is_moved_for_the_next_request_of_everybody(tmp_path: Path) -> None:
    yard = Yard({"a": Answering(number=1.0), "b": Answering(Position(2, 7), number=2.0)})
    flags: dict[str, Any] = {"label": (LabelPlace("prod", "a"),), "front_ends": 2, "default_model": "prod"}
    app = create_app(several(tmp_path, "a", "b", **flags), yard.make)

    with serving_app(app) as address, ExitStack() as open_clients:
        clients = [open_clients.enter_context(client_of(address)) for _ in range(6)]
        for number in range(10):
            name, expected = (("b", 2.0), ("a", 1.0))[number % 2]
            clients[0].post("/labels/prod", json={"model": name}, headers=OPERATOR).raise_for_status()
            for client in clients:
                for path in ("/predict", "/models/prod/predict", "/v1/models/prod:predict"):
                    answer = client.post(path, json=ROW)
                    assert answer.json()["predictions"] == [expected], path
                    assert answer.headers["X-Model-Name"] == name
        clients[0].post("/models/b/unload", headers=OPERATOR)
        assert clients[1].post("/models/a/predict", json=ROW).status_code == 200


def pid_of(app: FastAPI, connection: socket.socket) -> int:
    """Of the front-end that has the other end."""
    ours = connection.getsockname()[1]
    (found,) = (
        pid
        for pid in app.state.front_ends.pids
        for other in psutil.Process(pid).net_connections("tcp")
        if getattr(other.raddr, "port", None) == ours
    )
    return int(found)


def is_replaced(app: FastAPI, killed: int) -> bool:
    front_ends = app.state.front_ends
    return front_ends.running == 2 and killed not in front_ends.pids


def test_a_front_end_that_is_killed_takes_its_own_connections_with_it_and_comes_back() -> None:
    with behind(FakeModel()) as (app, address), ExitStack() as connections:
        by_pid: dict[int, list[socket.socket]] = {}
        while len(by_pid) < 2:
            connection = connections.enter_context(answered_before(address))
            by_pid.setdefault(pid_of(app, connection), []).append(connection)
        killed, other = by_pid

        os.kill(killed, signal.SIGKILL)

        assert all(connection.recv(1) == b"" for connection in by_pid[killed])
        for connection in by_pid[other]:
            connection.sendall(request(LENGTH))
            assert read_answer(connection)[0] == 200
        wait_until(lambda: is_replaced(app, killed), "it is back")
        with client_of(address) as client:
            assert client.post("/predict", json=ROW).status_code == 200
            told = scrape(client)
        assert (told["hotdelta_front_ends"], told["hotdelta_front_end_restarts_total"]) == (2, 1)


def test_under_load_a_killed_front_end_costs_each_client_at_most_the_request_that_it_had() -> None:
    stop, killed = threading.Event(), 2

    def ask(address: Address) -> tuple[int, int]:
        answered = broken = 0
        with client_of(address) as client:
            while not stop.is_set():
                try:
                    assert client.post("/predict", json=ROW).json()["predictions"] == [3.0]
                    answered += 1
                except httpx.TransportError:
                    broken += 1
        return answered, broken

    with behind(FakeModel()) as (app, address), ThreadPoolExecutor(6) as pool:
        front_ends = app.state.front_ends
        asking = [pool.submit(ask, address) for _ in range(6)]
        try:
            for _ in range(killed):
                victim = front_ends.pids[0]
                os.kill(victim, signal.SIGKILL)
                wait_until(functools.partial(is_replaced, app, victim), "it is back")
        finally:
            stop.set()
        counts = [task.result() for task in asking]

    assert all(broken <= killed for _, broken in counts), counts
    assert sum(answered for answered, _ in counts)


def test_requests_in_flight_are_answered_before_it_stops() -> None:
    model = FakeModel()
    with ExitStack() as connections:
        with behind(model, 1, stop_seconds=60.0) as (app, address):
            idle, connection = (connections.enter_context(answered_before(address)) for _ in range(2))
            model.is_asked.clear()
            model.may_answer.clear()
            connection.sendall(request(LENGTH))
            assert model.is_asked.wait(LIMIT_SECONDS)
            front_ends = app.state.front_ends
            threading.Thread(target=_answer_when_it_stops, args=(model, idle, address)).start()
        assert read_answer(connection) == (
            200,
            {"predictions": [3.0], "version": {"position": "1.1", "step": 10}},
        )
        assert front_ends.pids == ()


def _answer_when_it_stops(model: FakeModel, idle: socket.socket, address: Address) -> None:
    """When it has hung up on who is idle; who comes then is refused, and not left waiting."""
    hung_up = idle.recv(1) == b""
    with socket.socket() as stranger:
        if hung_up and stranger.connect_ex(address) == errno.ECONNREFUSED:
            model.may_answer.set()


def test_whose_time_is_over_when_it_stops_is_told_so() -> None:
    model = FakeModel()
    with ExitStack() as connections:
        with behind(model, 1, stop_seconds=1.0) as (_, address):
            connection = connections.enter_context(answered_before(address))
            model.is_asked.clear()
            model.may_answer.clear()
            connection.sendall(request(LENGTH))
            assert model.is_asked.wait(LIMIT_SECONDS)
            threading.Thread(target=_answer_late, args=(model, connection)).start()
        assert read_answer(connection) == (503, {"error": "the server is stopping. ask another one"})


def _answer_late(model: FakeModel, asking: socket.socket) -> None:
    """Not before the one who asked was told something else."""
    select.select([asking], [], [], LIMIT_SECONDS)
    model.may_answer.set()


def test_only_who_has_a_token_is_answered(tmp_path: Path) -> None:
    tokens = tmp_path / "predict"
    tokens.write_text("first-token-0123456789\n")
    options: dict[str, Any] = {"predict_token_file": tokens, "admin_token_file": token_file(tmp_path)}
    model = FakeModel()
    with behind(model, **options) as (_, address), client_of(address) as client:
        for path, body in (
            ("/predict", ROW),
            ("/v1/models/fake:predict", ROW),
            ("/v2/models/fake/infer", INFER),
        ):
            for sent in ({}, {"Authorization": "Bearer wrong-token-0123456789"}):
                answer = client.post(path, json=body, headers=sent)
                assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert model.calls == []
        for token in ("first-token-0123456789", TOKEN):
            sent = {"Authorization": f"Bearer {token}"}
            assert client.post("/predict", json=ROW, headers=sent).status_code == 200
            assert client.get("/model/version", headers=sent).status_code == 200
        assert client.get("/model/version").status_code == 401
        assert client.get("/healthz").status_code == 200


def test_tls_ends_in_the_front_end(tmp_path: Path) -> None:
    made = Certificates.make(tmp_path)
    files: dict[str, Any] = {
        "tls_cert": made.server.certificate,
        "tls_key": made.server.key,
        "tls_client_ca": made.ca.certificate,
    }
    trusting = ssl.create_default_context(cafile=made.ca.certificate)
    known = ssl.create_default_context(cafile=made.ca.certificate)
    known.load_cert_chain(made.client.certificate, made.client.key)
    with behind(FakeModel(), **files) as (_, address):
        url = f"https://localhost:{address[1]}"
        with client_of(address, base_url=url, verify=known) as client:
            assert client.post("/predict", json=ROW).json()["predictions"] == [3.0]
            large = {"signature_name": "echo", "instances": ["x" * 100_000] * 20}
            assert client.post("/predict", json=large).json()["predictions"] == large["instances"]
            assert client.get("/model/version").json()["position"] == "1.1"
        with client_of(address, base_url=url, verify=trusting) as client, pytest.raises(httpx.TransportError):
            client.post("/predict", json=ROW)


def test_a_stream_goes_on_until_the_client_or_the_server_ends_it() -> None:
    with behind(FakeModel(), stop_seconds=60.0) as (app, address), client_of(address) as client:
        with client.stream("GET", "/dashboard/events") as events:
            assert events.headers["Content-Type"].startswith("text/event-stream")
            lines = events.iter_lines()
            assert next(lines).startswith("data: {")
            assert app.state.stream.watchers == 1
        wait_until(lambda: app.state.stream.watchers == 0, "who hung up is not told any more")
        left = client.stream("GET", "/dashboard/events")
        events = left.__enter__()
        assert next(events.iter_lines()).startswith("data: {")
    left.__exit__(None, None, None)


def test_what_front_ends_answer_by_themselves_is_counted_before_the_next_scrape() -> None:
    asked: tuple[tuple[str, str, dict[str, Any], int, int], ...] = (
        ("hotdelta", "/predict", ROW, 200, 3),
        ("hotdelta", "/predict", {}, 400, 5),
        ("tensorflow_serving", "/v1/models/fake:predict", ROW, 200, 2),
        ("tensorflow_serving", "/v1/models/other:predict", ROW, 404, 1),
        ("open_inference", "/v2/models/fake/infer", INFER, 200, 4),
        ("open_inference", "/v2/models/fake/infer", {"inputs": []}, 400, 1),
    )
    with behind(FakeModel()) as (app, address), ExitStack() as clients:
        client = clients.enter_context(client_of(address))
        for _, path, body, status, times in asked:
            for _ in range(times):
                with client_of(address) as another:
                    assert another.post(path, json=body).status_code == status
        told = scrape(client)

        def is_all_counted(told: Scrape) -> bool:
            return all(
                told.get("hotdelta_requests_total", protocol=protocol, status=str(status)) == times
                for protocol, _, _, status, times in asked
            )

        assert is_all_counted(told), told.text
        assert told.get("hotdelta_request_seconds_count", protocol="hotdelta") == 8
        assert told.get("hotdelta_predict_seconds_count", model="fake", protocol="hotdelta") == 3
        assert told["hotdelta_buffered_bytes"] == 0
        for pid in app.state.front_ends.pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: app.state.front_ends.restarts == 2 and app.state.front_ends.running == 2, "both are back"
        )
        with client_of(address) as another:
            assert is_all_counted(scrape(another)), "what was told once stays"


def test_clients_that_a_front_end_refuses_are_counted() -> None:
    model = FakeModel()
    model.may_answer.clear()
    with behind(model, 1, max_connections=1) as (_, address):
        with socket.create_connection(address, timeout=LIMIT_SECONDS) as busy:
            busy.sendall(request(LENGTH))
            assert model.is_asked.wait(LIMIT_SECONDS)
            with socket.create_connection(address, timeout=LIMIT_SECONDS) as refused:
                assert read_answer(refused)[0] == 503
            model.may_answer.set()
            assert read_answer(busy)[0] == 200
        with client_of(address) as client:
            assert scrape(client).get("hotdelta_refused_clients_total", limit="connections") == 1


def test_an_order_that_is_refused_is_logged_with_the_address_of_who_gave_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        behind(FakeModel(), admin_token_file=token_file(tmp_path)) as (_, address),
        client_of(address) as client,
    ):
        assert client.post("/model/pin", json={}).status_code == 401

    assert "client=127.0.0.1" in caplog.text


def test_a_front_end_has_no_tensorflow() -> None:
    with behind(FakeModel(), 1) as (app, _):
        (pid,) = app.state.front_ends.pids
        assert "tensorflow" not in Path(f"/proc/{pid}/maps").read_text()


def test_each_has_its_share_and_room_for_one_body() -> None:
    settings = Settings(front_ends=3, max_connections=10, max_buffered_bytes=2**20, max_body_bytes=2**19)

    limits = share_of(settings)

    assert limits.max_connections == 4
    limits.buffered.take(2**19)


def test_settings_arrive_as_they_are(tmp_path: Path) -> None:
    tokens = token_file(tmp_path)
    settings = Settings(
        front_ends=2,
        predict_token_file=tokens,
        log_format="json",
        client_timeout_seconds=0.5,
        fleet=("http://127.0.0.1:1", "http://127.0.0.1:2"),
    )

    assert read_settings(told_settings(settings)) == settings
