"""Orders over HTTP: who may give them, what they say, and that they are logged with a name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError
from server.admin.tokens import AdminTokens
from tests.server.application import application
from tests.server.connections import request, serving
from tests.server.fake_model import FakeModel
from tests.waiting import wait_until

TOKEN = "0123456789abcdef0123"  # noqa: S105 - opens nothing
OTHER = "fedcba98765432109999"
ORDERS: list[tuple[str, dict[str, Any], tuple[str, Any]]] = [
    ("/model/rollback", {"position": "1.4"}, ("rollback", Position(1, 4))),
    ("/model/rollback", {"deltas": 2}, ("rollback_deltas", 2)),
    ("/model/pin", {}, ("pin", None)),
    ("/model/pin", {"position": "1.5"}, ("pin", Position(1, 5))),
    ("/model/resume", {}, ("resume", None)),
    ("/model/quarantine/release", {"position": "1.6"}, ("release", Position(1, 6))),
]


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(position=Position(1, 5))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# operators\nalice:{TOKEN}\n\nbob:{OTHER}\n")
    return path


@pytest.fixture
def client(model: FakeModel, token_file: Path) -> Iterator[TestClient]:
    app = application(model, admin_token_file=token_file)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path, order, expected", ORDERS)
def test_an_order_is_carried_out_and_logged_with_the_name_of_its_token(
    client: TestClient,
    model: FakeModel,
    path: str,
    order: dict[str, Any],
    expected: tuple[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = client.post(path, json=order, headers=bearer(OTHER))

    assert (answer.status_code, answer.json()["position"], answer.json()["by"]) == (200, "1.5", "bob")
    assert model.orders == [expected]
    assert "bob" in caplog.text
    assert OTHER not in caplog.text


@pytest.mark.parametrize("path", sorted({path for path, _, _ in ORDERS}))
@pytest.mark.parametrize(
    "headers",
    [{}, bearer(""), bearer(TOKEN[:-1]), bearer(f"{TOKEN}x"), bearer("alice"), {"Authorization": TOKEN}],
    ids=["none", "empty", "shorter", "longer", "the name", "without a scheme"],
)
def test_without_a_known_token_nothing_happens(
    client: TestClient, model: FakeModel, path: str, headers: dict[str, str]
) -> None:
    answer = client.post(path, json={"position": "1.4"}, headers=headers)

    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert model.orders == []


def test_without_a_token_file_the_routes_are_off_even_for_the_empty_token(model: FakeModel) -> None:
    with TestClient(application(model)) as client:
        answer = client.post("/model/resume", headers=bearer(""))

    assert answer.status_code == 403
    assert "--admin-token-file" in answer.json()["error"]
    assert model.orders == []


@pytest.mark.parametrize(
    "path, body",
    [
        ("/model/rollback", b"{}"),
        ("/model/rollback", b'{"position": "1.4", "deltas": 1}'),
        ("/model/rollback", b'{"deltas": 0}'),
        ("/model/rollback", b'{"deltas": true}'),
        ("/model/rollback", b'{"deltas": 1e9}'),
        ("/model/rollback", b'{"position": 1.4}'),
        ("/model/rollback", b'{"position": "newest"}'),
        ("/model/rollback", b'{"position": "9.9"}'),
        ("/model/pin", b'{"at": "1.4"}'),
        ("/model/pin", b"[]"),
        ("/model/resume", b'{"position": "1.4"}'),
        ("/model/quarantine/release", b"{}"),
        ("/model/quarantine/release", b"{"),
    ],
)
def test_an_order_that_cannot_be_read_or_carried_out_is_a_400_that_is_logged_and_changes_nothing(
    client: TestClient, model: FakeModel, path: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.post(path, content=body, headers=bearer(TOKEN))

    assert answer.status_code == 400
    assert answer.json()["error"]
    assert "admin order failed" in caplog.text
    assert "by=alice" in caplog.text
    assert model.orders == []


def test_an_order_of_many_bytes_is_not_read(client: TestClient) -> None:
    answer = client.post("/model/pin", content=b" " * 5000, headers=bearer(TOKEN))

    assert answer.status_code == 413
    assert answer.json()["error"].endswith("4096 bytes. an order is a short JSON object")


def test_an_order_whose_sender_hangs_up_is_logged_without_a_traceback(
    token_file: Path, model: FakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    head = [f"Authorization: Bearer {TOKEN}", "Content-Length: 20"]
    with serving(model, admin_token_file=token_file) as address:
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(request(*head, body=b"{", line="POST /model/pin HTTP/1.1"))
        wait_until(lambda: "hung up" in caplog.text, "it is logged")

    assert "Traceback" not in caplog.text
    assert model.orders == []


@pytest.mark.parametrize("text", ["", "# nobody\n", "alice\n", "alice:short\n", f"al ice:{TOKEN}\n"])
def test_a_token_file_that_holds_no_tokens_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)

    with pytest.raises(ConfigurationError):
        AdminTokens.read(tmp_path / "tokens")


@pytest.mark.parametrize(
    "text, reason",
    [
        (f"alice:{TOKEN}\nbob:{OTHER}\nalice:{OTHER}x\n", "line 3 of .* is the second token of 'alice'"),
        (f"alice:{TOKEN}:{OTHER}\n", "the token of 'alice' .* has a colon in it"),
    ],
    ids=["a name twice", "a colon, at which the hotdelta command would cut it"],
)
def test_a_token_that_nobody_could_use_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "tokens").write_text(text)

    with pytest.raises(ConfigurationError, match=reason):
        AdminTokens.read(tmp_path / "tokens")
