"""Which model a request means, and what is told of each; real models are in tests/end_to_end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hotdelta.chain import Position
from tests.server.fake_model import FakeModel
from tests.server.metrics.scrape import scrape
from tests.server.models.fleets import OPERATOR, ROW, Answering, Yard, answered, order, serving_all, several

READY_AT_ONCE = {"ready_wait_seconds": 0.0}


@pytest.fixture
def yard() -> Yard:
    return Yard({"a": Answering(number=1.0), "b": Answering(Position(2, 7), number=2.0)})


@pytest.fixture
def client(yard: Yard, tmp_path: Path) -> Iterator[TestClient]:
    with serving_all(yard, several(tmp_path, "a", "b", default_model="b", **READY_AT_ONCE)) as client:
        yield client


@pytest.mark.parametrize(
    "path", ["/models/{}/predict", "/v1/models/{}:predict", "/v1/models/{}/versions/1:predict"]
)
def test_each_model_answers_by_its_name_in_every_protocol(client: TestClient, path: str) -> None:
    for name, number, position in (("a", 1.0, "1.1"), ("b", 2.0, "2.7")):
        assert answered(client, path.format(name)) == number
        headers = client.post(path.format(name), json=ROW).headers
        assert (headers["X-Model-Name"], headers["X-Model-Version"]) == (name, position)


def test_the_open_inference_protocol_finds_each_and_lists_all(client: TestClient) -> None:
    inputs = [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]
    for name, number in (("a", 1.0), ("b", 2.0)):
        answer = client.post(f"/v2/models/{name}/infer", json={"inputs": inputs})
        assert answer.json()["outputs"][0]["data"] == [number]
        assert client.get(f"/v2/models/{name}/ready").status_code == 200
    assert [model["name"] for model in client.post("/v2/repository/index", json={}).json()] == ["a", "b"]


def test_who_names_no_model_gets_the_default_one(client: TestClient) -> None:
    assert answered(client, "/predict") == 2.0
    assert client.get("/model/version").json()["position"] == "2.7"
    assert client.get("/models/a/version").json()["position"] == "1.1"


def test_without_a_default_model_nothing_is_guessed(yard: Yard, tmp_path: Path) -> None:
    with serving_all(yard, several(tmp_path, "a", "b")) as client:
        for answer in (client.post("/predict", json=ROW), client.get("/model/version")):
            assert answer.status_code == 404
            assert "no default model. ask /models/NAME/predict with one of: a, b" in answer.json()["error"]


def test_the_only_model_of_several_is_the_default_one(yard: Yard, tmp_path: Path) -> None:
    with serving_all(yard, several(tmp_path, "a")) as client:
        assert answered(client, "/predict") == 1.0


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/models/c/predict"),
        ("POST", "/models/a/b/predict"),
        ("POST", "/models//predict"),
        ("GET", "/models/c/version"),
        ("GET", "/models/c/ready"),
        ("POST", "/v1/models/c:predict"),
        ("GET", "/v2/models/c/ready"),
    ],
)
def test_a_model_that_is_not_there_is_not_found(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path, json=ROW if method == "POST" else None).status_code == 404


def test_a_get_of_a_prediction_is_told_the_method(client: TestClient) -> None:
    assert client.get("/models/a/predict").status_code == 405


def test_all_are_listed_with_how_they_are(client: TestClient) -> None:
    listed = {model["name"]: model for model in client.get("/models").json()["models"]}

    assert (listed["a"]["position"], listed["a"]["is_default"]) == ("1.1", False)
    assert (listed["b"]["is_ready"], listed["b"]["is_default"], listed["b"]["labels"]) == (True, True, [])
    assert client.get("/v1/models").json() == {"models": ["a", "b"]}


ORDERS: list[tuple[str, dict[str, Any], tuple[str, Any]]] = [
    ("rollback", {"position": "1.4"}, ("rollback", Position(1, 4))),
    ("pin", {}, ("pin", None)),
    ("resume", {}, ("resume", None)),
    ("quarantine/release", {"position": "1.6"}, ("release", Position(1, 6))),
]


@pytest.mark.parametrize("verb, document, expected", ORDERS)
def test_an_order_is_for_the_model_that_it_names(
    client: TestClient, yard: Yard, verb: str, document: dict[str, Any], expected: tuple[str, Any]
) -> None:
    answer = order(client, f"/models/b/{verb}", document)

    assert (answer["model"], answer["position"], answer["by"]) == ("b", "2.7", "alice")
    assert (yard.models["a"].orders, yard.models["b"].orders) == ([], [expected])
    assert client.post(f"/models/b/{verb}", json=document).status_code == 401
    order(client, f"/model/{verb}", document)
    assert yard.models["b"].orders == [expected, expected]


def test_an_order_to_a_model_that_is_not_there_changes_nothing(client: TestClient, yard: Yard) -> None:
    assert client.post("/models/c/pin", json={}, headers=OPERATOR).status_code == 404
    assert all(not model.orders for model in yard.models.values())


def test_one_that_is_not_loaded_yet_takes_nothing_from_the_others(client: TestClient, yard: Yard) -> None:
    yard.models["a"].position = None

    asked = client.post("/models/a/predict", json=ROW)
    assert (asked.status_code, asked.headers["Retry-After"]) == (503, "1")
    told = "no model is served yet: waiting for an export. GET /models/a/version says more"
    assert asked.json()["error"] == told
    assert client.get("/v2/models/a/ready").status_code == 503
    refused = client.get("/v1/models/a")
    assert (refused.status_code, "GET /models/a/version says" in refused.json()["error"]) == (503, True)
    ready = client.get("/models/a/ready")
    assert (ready.status_code, ready.json()["reason"]) == (503, "waiting for an export")
    assert answered(client, "/models/b/predict") == 2.0
    assert client.get("/models/b/ready").status_code == 200
    for path in ("/readyz", "/v2/health/ready"):
        assert client.get(path).status_code == 200
    assert client.get("/readyz").json()["models"]["a"]["is_ready"] is False
    yard.models["b"].position = None
    assert client.get("/readyz").status_code == 503
    assert "a: waiting for an export; b: waiting for an export" in client.get("/readyz").json()["reason"]


def test_at_its_start_a_server_waits_for_all_of_its_models(yard: Yard, tmp_path: Path) -> None:
    yard.models["a"].position = None
    with serving_all(yard, several(tmp_path, "a", "b", ready_wait_seconds=3600.0)) as client:
        waiting = client.get("/readyz")
        assert (waiting.status_code, waiting.json()["reason"]) == (503, "a: waiting for an export")
        assert client.get("/v2/health/ready").status_code == 503
        yard.models["a"].position = Position(1, 1)
        assert client.get("/readyz").status_code == 200
        yard.models["a"].position = None
        # It was there once: from then on one that answers is enough.
        assert client.get("/readyz").status_code == 200


def test_one_that_cannot_be_made_is_listed_with_the_reason_and_the_others_are_served(
    yard: Yard, tmp_path: Path
) -> None:
    with serving_all(yard, several(tmp_path, "a", "broken", **READY_AT_ONCE)) as client:
        assert answered(client, "/models/a/predict") == 1.0
        refused = client.post("/models/broken/predict", json=ROW)
        assert refused.status_code == 503
        listed = {model["name"]: model for model in client.get("/models").json()["models"]}
        assert (listed["broken"]["is_ready"], listed["broken"]["reason"]) == (
            False,
            "nobody can make 'broken'",
        )
        assert client.get("/readyz").status_code == client.get("/healthz").status_code == 200
        assert order(client, "/models/broken/pin")[0] == 503


def test_a_thread_that_ended_is_not_healthy_whichever_model_it_is_of(client: TestClient, yard: Yard) -> None:
    yard.models["a"].is_alive = False

    assert client.get("/healthz").status_code == 500


def test_the_one_model_form_says_nothing_of_names(tmp_path: Path) -> None:
    from tests.server.application import application

    with TestClient(application(FakeModel())) as client:
        assert "X-Model-Name" not in client.post("/predict", json=ROW).headers
        assert client.post("/models/fake/predict", json=ROW).status_code == 200
        assert "models" not in client.get("/readyz").json()


def test_each_model_has_metrics_of_its_own(client: TestClient) -> None:
    for name, times in (("a", 3), ("b", 1)):
        for _ in range(times):
            answered(client, f"/models/{name}/predict")

    told = scrape(client)

    for name, times, run in (("a", 3, 1), ("b", 1, 2)):
        assert told.get("hotdelta_predict_seconds_count", model=name, protocol="hotdelta") == times
        assert told.get("hotdelta_batch_requests_count", model=name) == times
        assert told.get("hotdelta_live_run", model=name) == run
        assert told.get("hotdelta_ready", model=name) == 1
    assert told.get("hotdelta_requests_total", protocol="hotdelta", status="200") == 4


@pytest.mark.parametrize("path", ["/models/{}/ready", "/v2/models/{}/ready"])
def test_a_probe_of_one_model_needs_no_token_and_hears_of_no_other(
    yard: Yard, tmp_path: Path, path: str
) -> None:
    (tmp_path / "clients").write_text("a-client-0123456789\n")
    with serving_all(
        yard, several(tmp_path, "a", "b", predict_token_file=tmp_path / "clients", ready_wait_seconds=0.0)
    ) as client:
        assert client.get(path.format("a")).status_code == 200
        yard.models["b"].position = None

        assert [client.get(path.format(name)).status_code for name in ("a", "b", "nobody")] == [200, 503, 404]
        for name in ("b", "nobody"):
            told = client.get(path.format(name)).json()
            assert set(told) == {"error"}
            assert "export" not in told["error"]
            assert "'" not in told["error"], "no names"
        assert client.get("/readyz").json() == {"is_ready": True}
        known = {"Authorization": "Bearer a-client-0123456789"}
        assert set(client.get("/readyz", headers=known).json()["models"]) == {"a", "b"}
        assert client.get(path.format("b").removesuffix("/ready")).status_code == 401
