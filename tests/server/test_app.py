"""The routes in front of a fake model; real models answer in tests/end_to_end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from starlette.testclient import TestClient

from hotdelta.chain import Position, SignatureSpec
from server import app as app_module
from server.predict.position_wait import PositionWait
from tests.server.application import application
from tests.server.conftest import Serve
from tests.server.fake_model import FakeModel
from tests.waiting import wait_until


def test_a_prediction_carries_its_version_in_body_and_header(serve: Serve) -> None:
    answer = serve().post("/predict", json={"inputs": {"ids": [[1, 2], [3, 4]]}})

    assert answer.json() == {"outputs": {"score": [3.0, 7.0]}, "version": {"position": "1.1", "step": 10}}
    assert answer.headers["X-Model-Version"] == "1.1"
    assert answer.headers["Content-Type"] == "application/json"


def test_rows_are_answered_with_predictions(serve: Serve) -> None:
    assert serve().post("/predict", json={"instances": [[1, 2]]}).json()["predictions"] == [3.0]


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "", None])
def test_the_content_type_does_not_matter(serve: Serve, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}

    assert serve().post("/predict", content=b'{"instances": [[1, 2]]}', headers=headers).status_code == 200


def infer(rows: int) -> dict[str, object]:
    data = [1, 2] * rows
    return {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [rows, 2], "data": data}]}


@pytest.mark.parametrize(
    "path, body_of",
    [
        ("/predict", lambda rows: {"instances": [[1, 2]] * rows}),
        ("/predict", lambda rows: {"inputs": {"ids": [[1, 2]] * rows}}),
        ("/v1/models/fake:predict", lambda rows: {"inputs": [[1, 2]] * rows}),
        ("/v2/models/fake/infer", infer),
    ],
)
def test_more_rows_than_allowed_never_reach_the_model(
    serve: Serve, model: FakeModel, path: str, body_of: Callable[[int], dict[str, object]]
) -> None:
    client = serve(max_rows=3)

    assert client.post(path, json=body_of(3)).status_code == 200
    answer = client.post(path, json=body_of(4))

    assert answer.status_code == 413
    assert answer.json()["error"].startswith("the request has 4 rows, and 3 are allowed")
    assert model.calls == [("serving_default", 3)]


def test_an_id_out_of_range_is_the_fault_of_the_request(serve: Serve) -> None:
    answer = serve().post("/predict", json={"instances": [[1, 100]]})

    assert answer.status_code == 400
    assert "not in [0, 100)" in answer.json()["error"]


def test_a_fault_of_the_model_is_a_500_that_says_so(serve: Serve) -> None:
    answer = serve().post("/predict", json={"signature_name": "broken", "instances": [[1, 2]]})

    assert answer.status_code == 500
    assert "the prediction failed" in answer.json()["error"]


class ModelWithABug(FakeModel):
    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        raise RuntimeError("a bug")


def test_a_fault_of_ours_is_a_500_in_json_and_says_nothing_of_it(serve: Serve) -> None:
    answer = serve(ModelWithABug()).post("/predict", json={"instances": [[1, 2]]})

    assert answer.status_code == 500
    assert answer.json() == {"error": "the server failed at this request; its log says why"}


@pytest.mark.parametrize("has_length", [True, False])
def test_a_body_that_is_too_large_is_refused_whether_it_tells_its_size_or_not(
    serve: Serve, has_length: bool
) -> None:
    body = b" " * 5000
    content = body if has_length else iter([body[:2500], body[2500:]])

    assert serve(max_body_bytes=4096).post("/predict", content=content).status_code == 413


def test_before_a_model_is_served_nothing_is_ready_but_everything_answers(
    serve: Serve, model: FakeModel
) -> None:
    model.position = None
    client = serve()

    assert client.get("/healthz").status_code == 200
    assert client.get("/model/version").json()["position"] is None
    assert client.get("/readyz").json()["reason"] == "waiting for an export"
    for answer in (client.get("/readyz"), client.post("/predict", json={"instances": [[1, 2]]})):
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    model.position = Position(1, 1)
    assert client.get("/readyz").status_code == 200


def test_a_dead_updater_is_not_healthy(serve: Serve, model: FakeModel) -> None:
    model.is_alive = False

    assert serve().get("/healthz").status_code == 500


def test_a_position_that_is_not_served_yet_is_a_conflict(serve: Serve) -> None:
    client = serve()
    question = {"instances": [[1, 2]], "min_position": "1.2", "wait_ms": 20}

    answer = client.post("/predict", json=question)

    assert (answer.status_code, answer.json()["position"], answer.headers["X-Model-Version"]) == (
        409,
        "1.1",
        "1.1",
    )
    assert client.post("/predict", json={"instances": [[1, 2]], "min_position": "1.1"}).status_code == 200


def test_those_who_wait_for_a_position_go_on_when_it_is_served() -> None:
    async def scenario() -> None:
        live = Position(1, 1)
        wait = PositionWait(lambda: live)
        waiting = [asyncio.create_task(wait.until(Position(1, seq), 10)) for seq in (1, 2, 3)]
        too_long = asyncio.create_task(wait.until(Position(2, 1), 0.05))
        await asyncio.sleep(0.02)
        assert [task.done() for task in waiting] == [True, False, False]
        live = Position(1, 3)
        assert await asyncio.gather(*waiting) == [True, True, True]
        assert not await too_long

    asyncio.run(scenario())


def test_paths_and_methods_that_do_not_exist_are_errors_in_json(serve: Serve) -> None:
    client = serve()

    assert client.get("/nothing").status_code == 404
    assert client.post("/predict/", json={}, follow_redirects=False).status_code == 404
    assert (
        client.get("/healthz/", follow_redirects=False).json()["error"].startswith("GET /healthz/: Not Found")
    )
    assert client.get("/predict").status_code == 405
    assert "GET / lists the routes" in client.get("/predict").json()["error"]


def test_the_root_lists_the_routes_and_openapi_describes_them(serve: Serve) -> None:
    client = serve()
    listed = {route.split(" ")[1] for route in client.get("/").json()["routes"]}
    described = client.get("/openapi.json").json()["paths"]

    assert set(described) <= {*listed, "/"}
    assert "requestBody" in described["/predict"]["post"]
    for route in client.get("/").json()["routes"]:
        method, path = route.split(" ")
        assert method == "POST" or client.get(path.format(model="fake", version=1)).status_code == 200


def test_openapi_describes_every_status_and_how_to_give_an_order(serve: Serve) -> None:
    document = serve().get("/openapi.json").json()
    statuses = {
        (path, method): set(operation["responses"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }

    assert statuses["/readyz", "get"] == {"200", "503"}
    assert statuses["/healthz", "get"] == {"200", "500"}
    for path in ("/model/rollback", "/model/pin", "/model/resume", "/model/quarantine/release"):
        order = document["paths"][path]["post"]
        assert statuses[path, "post"] == {"200", "400", "401", "403", "404", "413", "500", "503"}
        assert (
            document["components"]["securitySchemes"][next(iter(order["security"][0]))]["scheme"] == "bearer"
        )
        assert order["requestBody"]["required"] is (path in ("/model/rollback", "/model/quarantine/release"))
        assert order["summary"]


def test_the_application_starts_the_loader_and_stops_it(serve: Serve, model: FakeModel) -> None:
    app = application(model)
    states = [model.is_started]

    with TestClient(app):
        states.append(model.is_started)
    states.append(model.is_started)

    assert states == [False, True, False]
    assert app.state.is_at_rest is True


def test_the_version_document_tells_tables_with_rows_and_dimensions(serve: Serve) -> None:
    document = serve().get("/model/version").json()

    assert document["tables"] == [{"key": "items", "rows": 100, "dimensions": [4], "dtype": "float32"}]
    assert (document["model_name"], document["update_state"]) == ("fake", "following")


def test_a_prediction_that_does_not_end_does_not_keep_the_server_from_stopping(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "_REST_SECONDS", 0.2)
    app = application(model, request_timeout_seconds=0.1)
    model.may_answer.clear()
    try:
        with TestClient(app) as client:
            # Until the model has one in hand: those that were given up before are not put to it.
            while not model.is_asked.is_set():
                assert client.post("/predict", json={"instances": [[1, 2]]}).status_code == 504
        assert app.state.is_at_rest is False
        wait_until(lambda: not model.is_started, "the loader is stopped")
    finally:
        model.may_answer.set()
