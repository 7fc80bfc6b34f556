"""TLS over real sockets: who is let in, what is said at the start, and what those hold who do not go on."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotdelta.errors import ConfigurationError
from server.configuration import read_configuration
from server.http.handshakes import MAX_HANDSHAKES
from server.tls import TlsFiles
from tests.server.certificates import Certificates, Pair, encrypt_key, signed
from tests.server.connections import BODY, LENGTH, Pace, read_answer, request, serving, told_in_time
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS, wait_until

PREDICT = request(LENGTH)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def flags(made: Certificates) -> dict[str, Any]:
    return {"tls_cert": made.server.certificate, "tls_key": made.server.key}


@pytest.fixture(scope="module")
def address(made: Certificates) -> Iterator[tuple[str, int]]:
    with serving(FakeModel(), **flags(made)) as found:
        yield found


def trusting(made: Certificates, shown: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.ca.certificate)
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


@contextmanager
def connected(address: tuple[str, int], context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(address, timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        yield connection


def predict(address: tuple[str, int], context: ssl.SSLContext) -> list[float]:
    with connected(address, context) as connection:
        connection.sendall(PREDICT)
        predictions: list[float] = read_answer(connection)[1]["predictions"]
        return predictions


def test_who_trusts_the_certificate_is_answered(address: tuple[str, int], made: Certificates) -> None:
    with httpx.Client(
        verify=trusting(made), base_url=f"https://localhost:{address[1]}", timeout=LIMIT_SECONDS
    ) as client:
        for _ in range(3):
            answer = client.post("/predict", content=b'{"instances": [[1, 2]]}')
            assert (answer.status_code, answer.json()["predictions"]) == (200, [3.0])


def test_large_requests_and_answers_go_through_tls_as_they_are(
    address: tuple[str, int], made: Certificates
) -> None:
    text = "a" * 5_000_000
    with httpx.Client(
        verify=trusting(made), base_url=f"https://localhost:{address[1]}", timeout=LIMIT_SECONDS
    ) as client:
        answer = client.post("/predict", json={"signature_name": "echo", "inputs": [text]})
    assert answer.json()["outputs"]["text"] == [text]


@pytest.mark.parametrize("sent", [PREDICT, b"\x16\x03\x01\xff\xff" + b"\0" * 100, b"\0"])
def test_who_speaks_no_tls_is_hung_up_on_and_others_are_answered(made: Certificates, sent: bytes) -> None:
    with serving(FakeModel(), client_timeout_seconds=0.5, **flags(made)) as address:
        with socket.create_connection(address, timeout=30) as plain:
            plain.sendall(sent)
            with contextlib.suppress(ConnectionError):
                while plain.recv(4096):
                    pass

        def story(_: Pace) -> None:
            assert predict(address, trusting(made)) == [3.0]

        told_in_time(story, seconds=0.2)


def test_those_who_never_begin_their_handshake_keep_nobody_out(made: Certificates) -> None:
    with (
        serving(FakeModel(), max_connections=2, client_timeout_seconds=3600, **flags(made)) as address,
        ExitStack() as stack,
    ):
        silent = [
            stack.enter_context(socket.create_connection(address, timeout=30))
            for _ in range(MAX_HANDSHAKES + 50)
        ]
        assert predict(address, trusting(made)) == [3.0]
        # The oldest made room; the youngest may still begin.
        with contextlib.suppress(ConnectionError):
            assert silent[0].recv(1) == b""
        with trusting(made).wrap_socket(silent[-1], server_hostname="localhost") as connection:
            connection.sendall(PREDICT)
            assert read_answer(connection)[0] == 200


def test_a_server_that_may_open_no_more_files_goes_on_when_it_may(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(FakeModel(), **flags(made)) as address, socket.socket() as plain:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            plain.connect(address)
            wait_until(lambda: "no connection can be accepted" in caplog.text, "it is said")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with trusting(made).wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(PREDICT)
            assert read_answer(connection)[0] == 200


def test_a_handshake_that_does_not_go_on_ends_with_the_patience_for_clients(made: Certificates) -> None:
    with (
        serving(FakeModel(), client_timeout_seconds=0.2, **flags(made)) as address,
        socket.create_connection(address, timeout=30) as silent,
        contextlib.suppress(ConnectionError),
    ):
        assert silent.recv(1) == b""


def test_who_takes_nothing_of_his_answer_is_hung_up_on_with_tls_too(made: Certificates) -> None:
    size = 15 * 2**20
    body = b'{"signature_name": "echo", "inputs": ["%b"]}' % (b"a" * size)
    settings = {"client_timeout_seconds": 1.0, "max_buffered_bytes": 20 * 2**20}

    def story(go_on: Pace) -> None:
        with (
            serving(FakeModel(), **settings, **flags(made)) as address,
            connected(address, trusting(made)) as connection,
        ):
            go_on()
            connection.sendall(request(f"Content-Length: {len(body)}", body=body))
            go_on()
            connection.recv(1)
            go_on()
            # There is no place for that beside what he does not take.
            large = request(f"Content-Length: {size}", body=BODY.ljust(size))
            wait_until(lambda: status_of(address, made, large) == 200, "there is place again")
            count = 1
            with contextlib.suppress(OSError):
                while piece := connection.recv(2**20):
                    count += len(piece)
            assert count < size

    told_in_time(story, seconds=0.5)


def status_of(address: tuple[str, int], made: Certificates, sent: bytes) -> int:
    # Who is refused may be hung up on before he has sent all.
    with contextlib.suppress(OSError), connected(address, trusting(made)) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
        status: int = read_answer(connection)[0]
        return status
    return 0


def test_an_idle_client_who_does_not_even_read_is_not_waited_for_at_the_end(made: Certificates) -> None:
    patience = {"client_timeout_seconds": 3600}
    with (
        ExitStack() as stack,
        serving(FakeModel(), stop_seconds=3600, **patience, **flags(made)) as address,
    ):
        connection = stack.enter_context(connected(address, trusting(made)))
        connection.sendall(PREDICT)
        assert read_answer(connection)[0] == 200


def test_with_a_client_ca_only_certificates_of_its_own_are_let_in(made: Certificates) -> None:
    with serving(FakeModel(), tls_client_ca=made.ca.certificate, **flags(made)) as address:
        assert predict(address, trusting(made, made.client)) == [3.0]
        for shown in (None, made.stranger):
            # With TLS 1.3 the client hears of it when it reads.
            with pytest.raises((ssl.SSLError, ConnectionError, ValueError, IndexError)):
                predict(address, trusting(made, shown))
        assert predict(address, trusting(made, made.client)) == [3.0]


def test_a_certificate_that_is_renewed_is_shown_to_the_next_client(
    made: Certificates, tmp_path: Path
) -> None:
    files = {}
    for name, path in flags(made).items():
        files[name] = tmp_path / path.name
        shutil.copy(path, files[name])
    with serving(FakeModel(), **files) as address:
        first = shown_by(address, made)
        # One that does not fit its key yet changes nothing.
        renewed = signed(tmp_path, "renewed", made.ca)
        shutil.copy(renewed.certificate, files["tls_cert"])
        assert shown_by(address, made) == first
        shutil.copy(renewed.key, files["tls_key"])
        wait_until(lambda: shown_by(address, made) != first, "the new certificate is shown")
        assert predict(address, trusting(made)) == [3.0]


def shown_by(address: tuple[str, int], made: Certificates) -> bytes:
    with connected(address, trusting(made)) as connection:
        certificate = connection.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


@pytest.mark.I9
def test_files_that_cannot_be_used_are_named_with_what_to_do(made: Certificates, tmp_path: Path) -> None:
    encrypted = encrypt_key(made.server, tmp_path / "encrypted.key")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not PEM")
    for files, problem in (
        (TlsFiles(made.server.certificate, made.client.key), "is not the key of --tls-cert"),
        (TlsFiles(garbage, made.server.key), "give a certificate"),
        (TlsFiles(made.server.certificate, garbage), "give a certificate"),
        (TlsFiles(made.server.certificate, encrypted), "is encrypted.*openssl pkey"),
        (
            TlsFiles(made.server.certificate, made.server.key, garbage),
            "--tls-client-ca .* holds no certificate",
        ),
        (TlsFiles(made.server.certificate, tmp_path / "gone"), "cannot be read: No such file"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            files.context()


@pytest.mark.I9
@pytest.mark.parametrize(
    "given, problem",
    [
        (("tls_cert",), "--tls-cert without --tls-key"),
        (("tls_key",), "--tls-key without --tls-cert"),
        (("tls_client_ca",), "--tls-client-ca without --tls-cert"),
    ],
)
def test_half_of_what_tls_needs_is_refused(given: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pem"
    path.touch()
    with pytest.raises(ConfigurationError, match=problem):
        read_configuration({"export_dir": Path("export"), **dict.fromkeys(given, path)}, {})
    with pytest.raises(ConfigurationError, match="which is not a file"):
        read_configuration({"export_dir": Path("export"), "tls_cert": tmp_path / "gone"}, {})


@pytest.mark.I9
def test_the_command_says_at_once_that_a_key_is_not_the_certificates(
    made: Certificates, tmp_path: Path
) -> None:
    done = subprocess.run(
        command(tmp_path, made.server.certificate, made.client.key),
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 1
    assert "is not the key of --tls-cert" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_speaks_tls_and_drains_at_sigterm(made: Certificates, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, made.server.certificate, made.server.key),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert url.startswith("https://127.0.0.1:")
        port = int(url.rsplit(":", 1)[1])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as silent,
            connected(("127.0.0.1", port), trusting(made)) as connection,
        ):
            head = request("Content-Length: 23", "Expect: 100-continue", body=b"")
            connection.sendall(head)
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
            process.send_signal(signal.SIGTERM)
            # Who has not even shaken hands is not waited for.
            with contextlib.suppress(ConnectionError):
                assert silent.recv(1) == b""
            connection.sendall(b'{"instances": [[1, 2]]}')
            # There is no model: what counts is that he is answered.
            assert read_answer(connection)[0] == 503
        assert process.wait(LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def command(directory: Path, certificate: Path, key: Path) -> list[str]:
    server = [sys.executable, "-m", "server.cli", "--export-dir", str(directory / "export"), "--port", "0"]
    return [*server, "--tls-cert", str(certificate), "--tls-key", str(key)]
