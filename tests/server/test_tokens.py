"""Who may predict: every protocol asks for a token, health and the description of the routes do not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hotdelta.errors import ConfigurationError, UnauthorizedError
from server.tokens import PredictTokens
from server.watched_files import LOOK_SECONDS, WatchedFiles
from tests.server.conftest import Serve
from tests.server.connections import read_answer, request, serving
from tests.server.fake_model import FakeModel

FIRST, SECOND, OPERATOR = "first-token-0123456789", "second-token-0123456789", "operators-token-012345"
PREDICT = {"instances": [[1, 2]]}
INFER = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}

GUARDED = [
    ("POST", "/predict", PREDICT),
    ("POST", "/v1/models/fake:predict", PREDICT),
    ("POST", "/v2/models/fake/infer", INFER),
    ("POST", "/v2/repository/index", None),
    ("GET", "/v1/models/fake", None),
    ("GET", "/v1/models/fake/metadata", None),
    ("GET", "/v2/models/fake", None),
    ("GET", "/v2", None),
    ("GET", "/model/version", None),
    ("HEAD", "/model/version", None),
]
OPEN = ["/", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/openapi.json", "/docs"]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# two clients\n\n{FIRST}\n  {SECOND}\n")
    return path


@pytest.mark.parametrize("method, path, body", GUARDED)
def test_whoever_sends_no_token_that_is_known_gets_no_answer(
    serve: Serve, model: FakeModel, tokens: Path, method: str, path: str, body: object
) -> None:
    client = serve(predict_token_file=tokens)

    for sent in ({}, {"Authorization": "Bearer wrong-token-0123456789"}, {"Authorization": f"Basic {FIRST}"}):
        answer = client.request(method, path, json=body, headers=sent)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        if method != "HEAD":
            assert "--predict-token-file" in answer.json()["error"]
    assert model.calls == []
    for token in (FIRST, SECOND):
        answer = client.request(method, path, json=body, headers={"authorization": f"bearer {token}"})
        assert answer.status_code == 200


@pytest.mark.parametrize("path", OPEN)
def test_health_and_the_description_need_no_token(serve: Serve, tokens: Path, path: str) -> None:
    assert serve(predict_token_file=tokens).get(path).status_code == 200


@pytest.mark.parametrize(
    "path", ["/readyz", "/models/fake/ready", "/v2/health/ready", "/v2/models/fake/ready"]
)
def test_a_probe_without_a_token_learns_whether_it_is_ready_and_no_more(
    serve: Serve, model: FakeModel, tokens: Path, path: str
) -> None:
    client = serve(predict_token_file=tokens)
    known = {"Authorization": f"Bearer {FIRST}"}
    ready = "ready" if path.startswith("/v2/") else "is_ready"

    for sent in ({}, {"Authorization": "Bearer wrong-token-0123456789"}):
        assert client.get(path, headers=sent).json() == {ready: True}
        assert client.head(path, headers=sent).status_code == 200
    if path == "/readyz":
        assert client.get(path, headers=known).json()["position"] == "1.1"

    model.position = None
    answer = client.get(path)
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    assert "an export" not in answer.text
    assert client.get(path, headers=known).status_code == 503
    assert client.post(path).status_code in (401, 405)


def test_what_is_not_there_is_not_told_without_a_token(serve: Serve, tokens: Path) -> None:
    client = serve(predict_token_file=tokens)
    assert client.get("/nowhere").status_code == 401
    assert client.get("/nowhere", headers={"Authorization": f"Bearer {FIRST}"}).status_code == 404


def test_an_operator_may_predict_and_a_client_may_give_no_orders(
    serve: Serve, tokens: Path, tmp_path: Path
) -> None:
    (tmp_path / "admins").write_text(f"ops:{OPERATOR}\n")
    client = serve(predict_token_file=tokens, admin_token_file=tmp_path / "admins")

    operator, somebody = ({"Authorization": f"Bearer {token}"} for token in (OPERATOR, FIRST))
    assert client.post("/predict", json=PREDICT, headers=operator).status_code == 200
    assert client.post("/model/pin", headers=operator).status_code == 200
    assert client.post("/model/pin", headers=somebody).status_code == 401


def test_a_body_is_not_waited_for_without_a_token(tokens: Path) -> None:
    with (
        serving(FakeModel(), predict_token_file=tokens) as address,
        socket.create_connection(address, timeout=30) as connection,
    ):
        connection.sendall(request("Content-Length: 1000000", body=b""))
        assert read_answer(connection)[0] == 401


def test_a_token_that_is_taken_away_is_refused_a_moment_later(tmp_path: Path) -> None:
    path, now = tmp_path / "tokens", [0.0]
    path.write_text(f"{FIRST}\n")
    watched = WatchedFiles([path], path.read_text, clock=lambda: now[0])
    path.write_text(f"{SECOND}\n\n")
    assert watched.current() == f"{FIRST}\n"
    now[0] += LOOK_SECONDS
    assert watched.current() == f"{SECOND}\n\n"


def test_files_that_cannot_be_read_any_more_leave_what_they_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "tokens", [0.0]
    path.write_text("as it was")

    def read() -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise ConfigurationError(f"{path} is gone") from error

    watched = WatchedFiles([path], read, clock=lambda: now[0])
    path.unlink()
    for _ in range(3):
        now[0] += LOOK_SECONDS
        assert watched.current() == "as it was"
    assert len(caplog.records) == 1
    path.write_text("renewed")
    now[0] += LOOK_SECONDS
    assert watched.current() == "renewed"


@pytest.mark.I9
@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "holds no token, so nobody could predict"),
        ("# none\n", "holds no token"),
        ("short\n", "line 1 .* is shorter than 16"),
        (f"{FIRST}\nname: {SECOND}\n", "line 2 .* is no token"),
        ("pässwörter-pässwörter\n", "line 1 .* is no token"),
    ],
)
def test_what_holds_no_tokens_keeps_the_server_from_starting(
    serve: Serve, tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        serve(predict_token_file=path)


def test_a_part_of_a_token_is_none(tokens: Path) -> None:
    known = PredictTokens(tokens)
    known.require(f"Bearer {FIRST}")
    for given in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {FIRST[:-1]}",
        f"Bearer {FIRST}x",
        FIRST,
        "Bearer ÿ",
    ):
        with pytest.raises(UnauthorizedError):
            known.require(given)
