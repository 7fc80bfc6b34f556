"""Servers that ask for a token or a certificate, and what is said where one is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.server.certificates import Certificates, encrypt_key
from tests.server.connections import serving
from tests.server.fake_model import FakeModel

READER, OPERATOR = "readers-token-0123456789", "operators-token-0123456789"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def tls(made: Certificates) -> dict[str, Any]:
    return {"tls_cert": made.server.certificate, "tls_key": made.server.key}


def test_a_token_for_questions_comes_from_a_file_or_the_environment(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOTDELTA_TOKEN", raising=False)
    (tmp_path / "tokens").write_text(f"{READER}\nanother-token-0123456789\n")
    (tmp_path / "mine").write_text(f"{READER}\n")
    with serving(FakeModel(), predict_token_file=tmp_path / "tokens") as (host, port):
        url = f"http://{host}:{port}"
        refused = run("log", url)
        assert refused.code == 1
        assert "--token-file or HOTDELTA_TOKEN" in refused.err
        assert run("log", url, "--token-file", tmp_path / "mine").code == 0
        monkeypatch.setenv("HOTDELTA_TOKEN", READER)
        assert run("log", url).code == 0
        several = run("log", url, "--token-file", tmp_path / "tokens")
        assert several.code == 2
        assert "holds 2 tokens" in several.err


def test_orders_have_a_token_of_their_own(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").write_text(f"ops:{OPERATOR}\n")
    model = FakeModel()
    with serving(model, admin_token_file=tmp_path / "tokens") as (host, port):
        monkeypatch.setenv("HOTDELTA_TOKEN", OPERATOR)
        monkeypatch.delenv("HOTDELTA_ADMIN_TOKEN", raising=False)
        assert run("pin", f"http://{host}:{port}").code == 2
        monkeypatch.setenv("HOTDELTA_ADMIN_TOKEN", OPERATOR)
        assert run("pin", f"http://{host}:{port}", "--json").document["position"] == "1.1"
    assert model.orders == [("pin", None)]


def test_a_server_with_a_certificate_of_ones_own_ca_is_trusted_when_that_is_given(
    made: Certificates, run: Run
) -> None:
    with serving(FakeModel(), **tls(made)) as (host, port):
        url = f"https://{host}:{port}"
        refused = run("log", url)
        assert refused.code == 1
        assert "certificate verify failed" in refused.err
        assert "--ca-file" in refused.err
        assert run("log", url, "--ca-file", made.ca.certificate).code == 0


def test_a_certificate_is_shown_to_a_server_that_asks_for_one(made: Certificates, run: Run) -> None:
    with serving(FakeModel(), tls_client_ca=made.ca.certificate, **tls(made)) as (host, port):
        arguments = ("log", f"https://{host}:{port}", "--ca-file", made.ca.certificate)
        mine = ("--client-cert", made.client.certificate, "--client-key", made.client.key)
        refused = run(*arguments)
        assert refused.code == 1
        assert "--client-cert" in refused.err
        assert ".." not in refused.err
        assert run(*arguments, *mine).code == 0


def test_an_address_with_the_wrong_scheme_is_told_the_right_one(made: Certificates, run: Run) -> None:
    with serving(FakeModel(), **tls(made)) as (host, port):
        refused = run("log", f"http://{host}:{port}")
        assert refused.code == 1
        assert "write https://" in refused.err
        assert ".." not in refused.err
    with serving(FakeModel()) as (host, port):
        refused = run("log", f"https://{host}:{port}")
        assert refused.code == 1
        assert "write http://" in refused.err


def test_files_that_are_no_certificates_are_named(tmp_path: Path, made: Certificates, run: Run) -> None:
    (tmp_path / "nonsense").write_text("x")
    secret = encrypt_key(made.client, tmp_path / "secret")
    certificate = made.client.certificate
    for options in (
        ("--ca-file", tmp_path / "nonsense"),
        ("--ca-file", tmp_path / "nowhere"),
        ("--client-cert", certificate, "--client-key", made.server.key),
        ("--client-cert", certificate, "--client-key", secret),
        ("--client-key", made.client.key),
    ):
        done = run("log", "https://127.0.0.1:1", *options)
        assert done.code == 2, options
        assert str(options[-1]) in done.err or "without --client-cert" in done.err
