"""Who may call: tokens and TLS hold for gRPC as they do for HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from server.rpc.messages import service
from tests.server.certificates import Certificates, Pair, signed
from tests.server.connections import serving_rpc
from tests.server.fake_model import FakeModel
from tests.server.rpc.test_listening import INFER, question
from tests.waiting import LIMIT_SECONDS, wait_until

SENT = "first-token-0123456789"
SERVICES = (
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
OPEN = {"Check", "Watch", "ServerLive", "ServerReady", "ModelReady", "ServerReflectionInfo"}
METHODS = [f"/{name}/{method.name}" for name in SERVICES for method in service(name).methods]


def code_of(
    channel: grpc.Channel, method: str, body: bytes = b"", token: str | None = None
) -> grpc.StatusCode:
    """Of whatever is called, with one message."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    call = channel.stream_stream(method)(iter([body]), timeout=LIMIT_SECONDS, metadata=metadata)
    try:
        next(call)
        call.cancel()
        return grpc.StatusCode.OK
    except grpc.RpcError:
        return call.code()


def test_every_call_but_those_of_health_and_reflection_needs_a_token(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(SENT)
    model = FakeModel()
    with (
        serving_rpc(model, predict_token_file=tmp_path / "tokens") as address,
        grpc.insecure_channel(address) as channel,
    ):
        for method in METHODS:
            is_refused = code_of(channel, method) is grpc.StatusCode.UNAUTHENTICATED
            assert is_refused != (method.rpartition("/")[2] in OPEN), method
        assert (
            code_of(channel, INFER, question(1, 2), "wrong-token-0123456789")
            is grpc.StatusCode.UNAUTHENTICATED
        )
        assert model.calls == []
        assert code_of(channel, INFER, question(1, 2), SENT) is grpc.StatusCode.OK
        of_the_model = b"\x0a\x04fake"
        assert code_of(channel, "/grpc.health.v1.Health/Check", of_the_model) is grpc.StatusCode.OK
        assert code_of(channel, "/grpc.health.v1.Health/Check", b"\x0a\x01x") is grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def secure(address: str, ca: Pair, client: Pair | None = None) -> grpc.Channel:
    key, chain = (
        (None, None) if client is None else (client.key.read_bytes(), client.certificate.read_bytes())
    )
    credentials = grpc.ssl_channel_credentials(ca.certificate.read_bytes(), key, chain)
    return grpc.secure_channel(address, credentials)


def can_ask(channel: grpc.Channel) -> bool:
    with channel:
        return code_of(channel, INFER, question(1, 2)) is grpc.StatusCode.OK


def test_with_a_certificate_it_speaks_tls_and_nothing_else(certificates: Certificates) -> None:
    server = certificates.server
    with serving_rpc(FakeModel(), tls_cert=server.certificate, tls_key=server.key) as address:
        assert can_ask(secure(address, certificates.ca))
        assert not can_ask(secure(address, certificates.stranger))
        assert not can_ask(grpc.insecure_channel(address))


def test_with_a_ca_for_clients_only_those_that_it_has_signed_are_let_in(certificates: Certificates) -> None:
    server, ca = certificates.server, certificates.ca
    files = {"tls_cert": server.certificate, "tls_key": server.key, "tls_client_ca": ca.certificate}
    with serving_rpc(FakeModel(), **files) as address:
        assert can_ask(secure(address, ca, certificates.client))
        assert not can_ask(secure(address, ca))
        assert not can_ask(secure(address, ca, certificates.stranger))


def test_a_certificate_that_is_renewed_is_shown_to_the_next_client(
    certificates: Certificates, tmp_path: Path
) -> None:
    shutil.copy(certificates.server.certificate, tmp_path / "server.pem")
    shutil.copy(certificates.server.key, tmp_path / "server.key")
    with serving_rpc(
        FakeModel(), tls_cert=tmp_path / "server.pem", tls_key=tmp_path / "server.key"
    ) as address:
        assert can_ask(secure(address, certificates.ca))
        assert not can_ask(secure(address, certificates.stranger))

        signed(tmp_path, "server", certificates.stranger)

        wait_until(lambda: can_ask(secure(address, certificates.stranger)), "the new one is shown")
        assert not can_ask(secure(address, certificates.ca))


def test_all_that_the_command_writes_is_json_whatever_knocks_at_its_port(
    certificates: Certificates, tmp_path: Path
) -> None:
    """The core of gRPC would tell of each bad handshake in its own way."""
    server = certificates.server
    command = [sys.executable, "-m", "server.cli", "--export-dir", str(tmp_path / "export"), "--port", "0"]
    command += ["--grpc-port", "0", "--log-format", "json"]
    command += ["--tls-cert", str(server.certificate), "--tls-key", str(server.key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            _, said = (json.loads(process.stdout.readline()) for _ in range(2))
            address = said["url"].removeprefix("grpcs://")
            assert not can_ask(grpc.insecure_channel(address))
            assert not can_ask(secure(address, certificates.stranger))
            process.terminate()
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()

    messages = [json.loads(line)["message"] for line in errors.splitlines()]
    assert (messages[0], messages[-1]) == ("starting", "stopped")
    assert process.returncode == 0
