"""A name for clients that an order moves from one model to another, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hotdelta.chain import Position, SignatureSpec, TensorSpec
from hotdelta.errors import ConfigurationError
from loader.status import LoaderStatus, State
from server.app import create_app
from server.models.label_book import LabelBook, Moved
from server.setting_values import LabelPlace
from tests.server.fake_model import IDS, SIGNATURES
from tests.server.models.fleets import ROW, Answering, Yard, answered, order, serving_all, several

PROD = (LabelPlace("prod", "old"),)


@dataclass
class Standing(Answering):
    """One that stands in some way to its chain."""

    standing: dict[str, Any] = field(default_factory=dict)

    def status(self) -> LoaderStatus:
        return replace(super().status(), **self.standing)


@pytest.fixture
def yard() -> Yard:
    return Yard({"old": Standing(number=1.0), "new": Standing(Position(2, 7), number=2.0)})


@pytest.fixture
def client(yard: Yard, tmp_path: Path) -> Iterator[TestClient]:
    with serving_all(yard, several(tmp_path, "old", "new", label=PROD, default_model="prod")) as client:
        yield client


def new_of(yard: Yard) -> Standing:
    new = yard.models["new"]
    assert isinstance(new, Standing)
    return new


def test_a_label_is_a_name_in_every_protocol_and_one_order_moves_it(client: TestClient) -> None:
    paths = (
        "/predict",
        "/models/prod/predict",
        "/v1/models/prod:predict",
        "/v1/models/prod/labels/prod:predict",
    )
    assert [answered(client, path) for path in paths] == [1.0] * 4

    moved = order(client, "/labels/prod", {"model": "new"})

    assert (moved["label"], moved["model"], moved["before"]) == ("prod", "new", "old")
    assert [answered(client, path) for path in paths] == [2.0] * 4
    assert client.post("/models/prod/predict", json=ROW).headers["X-Model-Name"] == "new"
    assert client.get("/labels").json() == {"labels": {"prod": {"model": "new", "before": "old"}}}
    assert client.get("/models/prod/version").json()["position"] == "2.7"
    assert [model["labels"] for model in client.get("/models").json()["models"]] == [[], ["prod"]]
    assert client.get("/v1/models").json() == {"models": ["old", "new", "prod"]}
    assert answered(client, "/models/old/predict") == 1.0


def test_a_label_of_a_model_is_found_where_it_is_and_nowhere_else(client: TestClient) -> None:
    assert answered(client, "/v1/models/old/labels/prod:predict") == 1.0
    elsewhere = client.post("/v1/models/new/labels/prod:predict", json=ROW)
    assert elsewhere.status_code == 404
    assert "the label 'prod' is not at 'new'. it is at 'old'" in elsewhere.json()["error"]
    unknown = client.post("/v1/models/old/labels/test:predict", json=ROW)
    assert (unknown.status_code, "there is no label 'test'. labels: prod" in unknown.json()["error"]) == (
        404,
        True,
    )


@pytest.mark.parametrize(
    "standing, reason",
    [
        (
            {"commits_behind": 3, "seconds_behind": 60.0},
            "'new' has not caught up: 3 commits and 60 seconds behind",
        ),
        (
            {"state": State.PINNED, "reason": "pinned at 2.6", "commits_behind": 1},
            "'new' is held back: pinned at 2.6",
        ),
        ({"state": State.DEGRADED, "reason": "a hole"}, "'new' is degraded: a hole"),
        ({"state": State.WAITING, "reason": "no checkpoint"}, "'new' is waiting: no checkpoint"),
        ({"is_ready": False, "reason": "loading"}, "'new' serves nothing yet: loading"),
    ],
)
def test_a_label_does_not_move_to_a_model_that_has_not_caught_up(
    client: TestClient, yard: Yard, standing: dict[str, Any], reason: str
) -> None:
    new_of(yard).standing = standing

    status, error = order(client, "/labels/prod", {"model": "new"})

    assert (status, reason in error) == (400, True)
    assert answered(client, "/models/prod/predict") == 1.0
    new_of(yard).standing = {"commits_behind": 1, "seconds_behind": 0.5}
    order(client, "/labels/prod", {"model": "new"})
    assert answered(client, "/models/prod/predict") == 2.0


OUTPUTS = SIGNATURES["serving_default"].outputs


@pytest.mark.parametrize(
    "signatures, reason",
    [
        ({}, "'new' has no signature 'serving_default'"),
        (
            {"serving_default": SignatureSpec((TensorSpec("ids", (None, 3), "int64"),), OUTPUTS)},
            "'new' has other inputs in 'serving_default': ids int64[any, 3] in place of ids int64[any, 2]",
        ),
        (
            {"serving_default": SignatureSpec((IDS, TensorSpec("age", (None,), "float32")), OUTPUTS)},
            "'new' has other inputs in 'serving_default'",
        ),
        (
            {"serving_default": SignatureSpec((IDS,), (TensorSpec("score", (None,), "float64"),))},
            "'new' has other outputs in 'serving_default': score float64[any] in place of score float32[any]",
        ),
    ],
)
def test_a_label_does_not_move_to_a_model_that_its_clients_could_not_ask(
    client: TestClient, yard: Yard, signatures: Mapping[str, SignatureSpec], reason: str
) -> None:
    others = {name: spec for name, spec in SIGNATURES.items() if name != "serving_default"}
    new_of(yard).standing = {"signatures": {**others, **signatures}}

    status, error = order(client, "/labels/prod", {"model": "new"})

    assert (status, reason in error) == (400, True)
    assert answered(client, "/models/prod/predict") == 1.0


def test_a_model_that_can_be_asked_more_may_have_the_label(client: TestClient, yard: Yard) -> None:
    new_of(yard).standing = {"signatures": {**SIGNATURES, "more": SIGNATURES["two"]}}
    order(client, "/labels/prod", {"model": "new"})

    assert order(client, "/labels/prod", {"model": "old"})[0] == 400, "clients may ask for more by now"


def test_the_way_back_is_open_however_far_behind_the_old_model_is(client: TestClient, yard: Yard) -> None:
    order(client, "/labels/prod", {"model": "new"})
    old = yard.models["old"]
    assert isinstance(old, Standing)
    old.standing = {"state": State.DEGRADED, "reason": "a hole", "commits_behind": 9, "seconds_behind": 900.0}

    assert order(client, "/labels/prod", {"model": "old"})["model"] == "old"
    assert answered(client, "/models/prod/predict") == 1.0


@pytest.mark.parametrize(
    "label, document, status, reason",
    [
        ("test", {"model": "new"}, 400, "there is no label 'test'"),
        ("prod", {"model": "newer"}, 400, "there is no model 'newer'"),
        ("prod", {"model": "prod"}, 400, "there is no model 'prod'"),
        ("prod", {}, 400, "model is missing"),
        ("prod", {"model": "new", "now": True}, 400, "'now' is unknown"),
    ],
)
def test_an_order_that_cannot_be_carried_out_moves_nothing(
    client: TestClient, label: str, document: dict[str, Any], status: int, reason: str
) -> None:
    refused = order(client, f"/labels/{label}", document)

    assert (refused[0], reason in refused[1]) == (status, True)
    assert answered(client, "/models/prod/predict") == 1.0


def test_nobody_moves_a_label_without_a_token(client: TestClient) -> None:
    assert client.post("/labels/prod", json={"model": "new"}).status_code == 401
    assert answered(client, "/models/prod/predict") == 1.0


def moved_label(yard: Yard, directory: Path, **flags: Any) -> bool:
    """Moves it to the new model; whether the server says that it will know that after a restart."""
    with serving_all(yard, several(directory, "old", "new", label=PROD, **flags)) as client:
        return bool(order(client, "/labels/prod", {"model": "new"})["survives_restart"])


def number_after_restart(yard: Yard, directory: Path, *names: str, **flags: Any) -> float:
    with serving_all(yard, several(directory, *(names or ("old", "new")), **flags)) as client:
        return answered(client, "/models/prod/predict")


@pytest.mark.I6
def test_where_a_label_was_moved_to_survives_a_restart_with_a_state_directory(
    yard: Yard, tmp_path: Path
) -> None:
    kept = {"state_dir": tmp_path / "state"}

    assert moved_label(yard, tmp_path, **kept)

    assert number_after_restart(yard, tmp_path, label=PROD, **kept) == 2.0
    # The settings have the last word when they say something new.
    said = (LabelPlace("prod", "new"),)
    assert number_after_restart(yard, tmp_path, label=said, **kept) == 2.0
    # Without the model that it was moved to there is only what the settings say.
    assert number_after_restart(yard, tmp_path, "old", label=PROD, **kept) == 1.0


@pytest.mark.I9
def test_two_servers_with_different_models_do_not_share_a_state_directory(yard: Yard, tmp_path: Path) -> None:
    kept = {"state_dir": tmp_path / "state"}
    with serving_all(yard, several(tmp_path, "old", label=PROD, **kept)) as client:
        with pytest.raises(ConfigurationError, match=r"another server uses the state directory .*state"):
            create_app(several(tmp_path, "new", **kept), yard.make)
        assert answered(client, "/models/prod/predict") == 1.0
    with serving_all(yard, several(tmp_path, "new", **kept)) as client:
        assert answered(client, "/models/new/predict") == 2.0


def test_without_a_state_directory_a_restart_forgets_it_and_the_order_says_so(
    yard: Yard, tmp_path: Path
) -> None:
    assert not moved_label(yard, tmp_path)
    assert number_after_restart(yard, tmp_path, label=PROD) == 1.0


def test_a_file_of_labels_that_cannot_be_read_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text('{"format_version": 1, "labels": {"prod": 7}}')

    with pytest.raises(ConfigurationError, match=r"labels\.json cannot be read.*remove it to begin with"):
        LabelBook(tmp_path)


def test_a_label_that_cannot_be_kept_holds_all_the_same_and_says_so(tmp_path: Path) -> None:
    book = LabelBook(tmp_path / "state")
    (tmp_path / "state").write_text("in the way")
    book.moved["prod"] = Moved("new", "old", "old")

    book.keep()

    assert not book.is_kept
    assert book.places({"prod": "old"}, {"old", "new"}) == {"prod": "new"}
