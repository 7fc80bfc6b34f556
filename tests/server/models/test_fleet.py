"""Models that come and go while the others are served: by the file, and by orders."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hotdelta.chain import Position
from server.configuration import read_configuration
from server.models import fleet
from tests.server.models.fleets import (
    ROW,
    Answering,
    Yard,
    answered,
    order,
    serving_all,
    several,
    token_file,
)
from tests.waiting import wait_until

TWO = """
admin_token_file = "tokens"
loadable_dir = "loadable"
ready_wait_seconds = 0.0
default_model = "prod"
[labels]
prod = "a"
[models.a]
export_dir = "a/export"
checkpoint_dir = "a/run"
[models.b]
export_dir = "b/export"
checkpoint_dir = "b/run"
"""
C = """
[models.c]
export_dir = "c/export"
"""


@pytest.fixture
def yard() -> Yard:
    return Yard(
        {
            "a": Answering(number=1.0),
            "b": Answering(Position(2, 7), number=2.0),
            "c": Answering(Position(1, 9), number=3.0),
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    token_file(tmp_path)
    (tmp_path / "loadable").mkdir()
    (tmp_path / "loadable" / "link").symlink_to(tmp_path)
    path = tmp_path / "models.toml"
    path.write_text(TWO)
    return path


@pytest.fixture
def client(yard: Yard, file: Path) -> Iterator[TestClient]:
    read = functools.partial(read_configuration, {"config": file}, {})
    with serving_all(yard, read(), reread=read) as client:
        yield client


def names(client: TestClient) -> list[str]:
    return [model["name"] for model in client.get("/models").json()["models"]]


def test_the_file_is_read_again_and_only_what_is_new_is_started(
    client: TestClient, yard: Yard, file: Path
) -> None:
    file.write_text(TWO + C)
    change = order(client, "/models/reload")

    assert (change["added"], change["removed"], change["survives_restart"]) == (["c"], [], True)
    assert answered(client, "/models/c/predict") == 3.0
    assert yard.made == ["a", "b", "c"]
    assert yard.models["c"].is_started
    assert order(client, "/models/reload")["added"] == []


def test_a_model_that_is_gone_from_the_file_is_stopped_and_not_found(
    client: TestClient, yard: Yard, file: Path
) -> None:
    file.write_text(TWO.partition("[models.b]")[0])
    change = order(client, "/models/reload")

    assert (change["removed"], names(client)) == (["b"], ["a"])
    assert client.post("/models/b/predict", json=ROW).status_code == 404
    wait_until(lambda: not yard.models["b"].is_started, "it is stopped")
    assert answered(client, "/predict") == 1.0


@pytest.mark.I9
@pytest.mark.parametrize(
    "text, reason",
    [
        (TWO + "[models.c]\n", "[models.c]: export_dir is missing"),
        (TWO + '[models.d]\nexport_dir = "d"\n', "nobody can make 'd'"),
        (TWO + C + '[models.d]\nexport_dir = "d"\n', "nobody can make 'd'"),
        (TWO + "[models.c", "cannot be read"),
        (TWO.replace("a/run", "a/other"), "settings of 'a' cannot change while it is served: checkpoint_dir"),
        (TWO + "undo_bytes = 0\nmax_abs = 7", "max_abs is no setting"),
        ("port = 1\n" + TWO, "port cannot change while the server runs"),
        (TWO.replace('prod = "a"', 'prod = "c"') + C, "cannot be at 'c', which is only being added"),
        (TWO.replace("[models.a]", "[models.c]"), "'prod' is at 'a', which is no model here"),
    ],
)
def test_a_file_with_an_error_changes_nothing_and_says_what_is_wrong(
    client: TestClient, yard: Yard, file: Path, text: str, reason: str
) -> None:
    file.write_text(text)

    refused = order(client, "/models/reload")

    assert (refused[0], reason in refused[1]) == (400, True), refused
    assert names(client) == ["a", "b"]
    assert (answered(client, "/predict"), answered(client, "/models/b/predict")) == (1.0, 2.0)
    assert not yard.models["c"].is_started


def test_a_label_is_moved_by_the_file_as_by_an_order(client: TestClient, file: Path) -> None:
    file.write_text(TWO.replace('prod = "a"', 'prod = "b"'))
    order(client, "/models/reload")

    assert answered(client, "/models/prod/predict") == 2.0


def test_a_label_that_an_order_has_moved_stays_there_when_the_file_says_nothing_new(
    client: TestClient, file: Path
) -> None:
    order(client, "/labels/prod", {"model": "b"})
    file.write_text(TWO + C)
    order(client, "/models/reload")

    assert answered(client, "/models/prod/predict") == 2.0
    file.write_text(TWO.partition("[models.b]")[0])
    refused = order(client, "/models/reload")
    assert "the model 'b' cannot go: the label 'prod' is at it" in refused[1]


def test_a_label_that_came_with_the_file_is_kept_where_an_order_moved_it(yard: Yard, file: Path) -> None:
    head = 'state_dir = "state"\n'
    file.write_text(head + TWO.replace('prod = "a"', "").replace('default_model = "prod"', ""))
    read = functools.partial(read_configuration, {"config": file}, {})
    with serving_all(yard, read(), reread=read) as client:
        file.write_text(head + TWO.replace('default_model = "prod"', ""))
        order(client, "/models/reload")
        assert answered(client, "/models/prod/predict") == 1.0
        assert order(client, "/labels/prod", {"model": "b"})["survives_restart"] is True
    with serving_all(yard, read(), reread=read) as client:
        assert answered(client, "/models/prod/predict") == 2.0


def test_a_model_is_loaded_and_unloaded_by_orders(client: TestClient, yard: Yard) -> None:
    added = order(client, "/models/c/load", {"export_dir": "c/export", "checkpoint_dir": "c/run"})

    assert (added["added"], added["survives_restart"]) == (["c"], False)
    assert answered(client, "/models/c/predict") == 3.0
    assert order(client, "/models/c/unload")["removed"] == ["c"]
    assert client.post("/models/c/predict", json=ROW).status_code == 404
    wait_until(lambda: not yard.models["c"].is_started, "it is stopped")


@pytest.mark.parametrize(
    "path, document, reason",
    [
        ("/models/a/load", {"export_dir": "c/export"}, "the model 'a' is there twice"),
        ("/models/c/load", {"export_dir": "../a/export"}, "export_dir is not below --loadable-dir"),
        ("/models/c/load", {"export_dir": "link/export"}, "export_dir is not below --loadable-dir"),
        ("/models/c/load", {"export_dir": "c", "checkpoint_dir": "/run"}, "checkpoint_dir is not below"),
        (
            "/models/c/load",
            {"export_dir": "c", "checkpoint_dir": "run", "state_dir": "/var"},
            "state_dir is not below --loadable-dir",
        ),
        ("/models/prod/load", {"export_dir": "c/export"}, "the label 'prod' is the name of a model, too"),
        ("/models/c/load", {}, "export_dir is missing"),
        ("/models/c/load", {"export_dir": 7}, "--export-dir is 7. write a text"),
        (
            "/models/c/load",
            {"export_dir": "c", "undo_byte": 7},
            "undo_byte is no setting. did you mean undo_bytes?",
        ),
        ("/models/-c/load", {"export_dir": "c"}, "the name of a model is '-c'"),
        ("/models/a/unload", {}, "the label 'prod' is at 'a', which is no model here"),
        ("/models/d/unload", {}, "there is no model 'd'"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(
    client: TestClient, path: str, document: dict[str, Any], reason: str
) -> None:
    status, error = order(client, path, document)

    assert (status, reason in error) == (400, True), error
    assert names(client) == ["a", "b"]


def test_the_old_model_can_go_when_its_label_has_moved(client: TestClient, yard: Yard) -> None:
    order(client, "/labels/prod", {"model": "b"})

    assert order(client, "/models/a/unload")["removed"] == ["a"]
    wait_until(lambda: not yard.models["a"].is_started, "it is stopped")
    assert (answered(client, "/predict"), names(client)) == (2.0, ["b"])


def test_nobody_changes_the_models_without_a_token(client: TestClient) -> None:
    for path in ("/models/reload", "/models/b/unload", "/models/c/load"):
        assert client.post(path, json={"export_dir": "c"}).status_code == 401
    assert names(client) == ["a", "b"]


def test_without_a_file_there_is_none_to_read_and_without_names_there_is_nothing_to_add(
    yard: Yard, tmp_path: Path
) -> None:
    from tests.server.application import application

    with serving_all(yard, several(tmp_path, "a", "b")) as client:
        assert "start it with --config" in order(client, "/models/reload")[1]
        refused = order(client, "/models/c/load", {"export_dir": str(tmp_path / "c")})
        assert "orders add no models to this server. start it with --loadable-dir" in refused[1]
    with serving_all(yard, several(tmp_path, "a", "b", loadable_dir=tmp_path)) as client:
        order(client, "/models/c/load", {"export_dir": str(tmp_path / "c")})
        assert names(client) == ["a", "b", "c"]
    with TestClient(application(yard.models["a"], admin_token_file=tmp_path / "tokens")) as client:
        assert "start it with --model or --config" in order(client, "/models/c/load", {"export_dir": "c"})[1]


@pytest.mark.I2
def test_who_was_asking_when_a_model_was_removed_gets_his_answer(client: TestClient, yard: Yard) -> None:
    leaving = yard.models["b"]
    leaving.may_answer.clear()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.post, "/models/b/predict", json=ROW)
        assert leaving.is_asked.wait(30)

        order(client, "/models/b/unload")

        assert client.post("/models/b/predict", json=ROW).status_code == 404
        assert leaving.is_started, "he still waits for it"
        leaving.may_answer.set()
        assert asking.result().json()["predictions"] == [2.0]
    wait_until(lambda: not leaving.is_started, "it is stopped")


def test_a_model_that_comes_back_waits_until_the_old_one_of_its_name_has_gone(
    client: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = yard.models["b"]
    leaving.may_answer.clear()
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(client.post, "/models/b/predict", json=ROW)
        assert leaving.is_asked.wait(30)
        order(client, "/models/b/unload")

        with monkeypatch.context() as impatient:
            impatient.setattr(fleet, "GOING_SECONDS", 0.05)
            status, error = order(client, "/models/reload")
            assert (status, yard.made) == (400, ["a", "b"])
            assert re.search("'b' is still going: .*try again in [0-9.]+ seconds", error), error
        assert names(client) == ["a"]

        coming = pool.submit(order, client, "/models/reload")
        leaving.may_answer.set()
        assert asking.result().json()["predictions"] == [2.0]
        assert coming.result()["added"] == ["b"]
    assert yard.made == ["a", "b", "b"]


def test_a_model_that_was_removed_leaves_no_thread_behind(yard: Yard, file: Path) -> None:
    # Those of a server that has ended may just be ending.
    others = set(threading.enumerate())
    read = functools.partial(read_configuration, {"config": file}, {})
    with serving_all(yard, read(), reread=read) as client:
        ours = {each for each in threading.enumerate() if each.name.startswith("predict-")} - others
        order(client, "/models/b/unload")

        def left() -> int:
            return sum(thread.is_alive() for thread in ours)

        wait_until(lambda: left() == len(ours) - 1, "the thread of its predictions has ended")


def test_a_server_that_stops_waits_for_no_model_that_is_leaving(yard: Yard, tmp_path: Path) -> None:
    leaving = yard.models["b"]
    leaving.may_answer.clear()
    try:
        flags: dict[str, Any] = {"request_timeout_seconds": 0.05, "stop_seconds": 3600.0}
        with serving_all(yard, several(tmp_path, "a", "b", **flags)) as client:
            while not leaving.is_asked.is_set():
                assert client.post("/models/b/predict", json=ROW).status_code == 504
            order(client, "/models/b/unload")
        wait_until(lambda: not leaving.is_started, "its loader is stopped")
    finally:
        leaving.may_answer.set()


def test_a_file_may_have_no_model_yet(yard: Yard, file: Path) -> None:
    head = 'admin_token_file = "tokens"\n'
    file.write_text(head)
    read = functools.partial(read_configuration, {"config": file}, {})
    with serving_all(yard, read(), reread=read) as client:
        assert (names(client), client.get("/readyz").status_code) == ([], 503)
        assert client.get("/healthz").status_code == 200
        assert client.post("/predict", json=ROW).status_code == 404
        file.write_text(head + C)
        order(client, "/models/reload")
        assert client.get("/readyz").status_code == 200
        assert answered(client, "/predict") == 3.0, "it is the only one"


def test_a_model_that_could_not_be_made_is_tried_again_by_a_reload(yard: Yard, file: Path) -> None:
    read = functools.partial(read_configuration, {"config": file}, {})
    missing = yard.models.pop("b")
    with serving_all(yard, read(), reread=read) as client:
        assert client.post("/models/b/predict", json=ROW).status_code == 503
        assert order(client, "/models/reload")["added"] == []
        file.write_text(TWO + C)
        assert order(client, "/models/reload")["added"] == ["c"], "it takes nothing from the others"
        assert client.post("/models/b/predict", json=ROW).status_code == 503
        yard.models["b"] = missing
        assert order(client, "/models/reload")["added"] == ["b"]
        assert answered(client, "/models/b/predict") == 2.0
