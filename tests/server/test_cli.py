"""The command before TensorFlow is imported; served models are in tests/end_to_end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import server.cli
from hotdelta.errors import ConfigurationError
from server.http.listening import bind
from tests.waiting import LIMIT_SECONDS

DIRECTORIES = ["--export-dir", "export", "--checkpoint-dir", "run"]


def run_server(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "server.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env={**os.environ, **variables},
    )


def test_help_teaches_every_flag_and_its_variable() -> None:
    shown = run_server("--help")

    assert shown.returncode == 0
    for text in ("--checkpoint-dir", "HOTDELTA_MAX_BATCH_SIZE", "curl -d", "max_abs=1e+06", "Exit codes"):
        assert text in shown.stdout


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_log_for_machines_says_as_json_why_the_server_cannot_start(taken_port: int) -> None:
    refused = run_server(*DIRECTORIES, "--port", str(taken_port), "--log-format", "json")

    (record,) = map(json.loads, refused.stderr.splitlines())
    assert (refused.returncode, record["level"], record["message"]) == (1, "ERROR", "cannot start")
    assert f"port {taken_port}: Address already in use" in record["error"]


@pytest.mark.parametrize("flag, more", [("--port", []), ("--grpc-port", ["--port", "0"])])
def test_a_port_that_is_taken_is_said_at_once(taken_port: int, flag: str, more: list[str]) -> None:
    refused = run_server(*DIRECTORIES, *more, flag, str(taken_port))

    assert refused.returncode == 1
    assert refused.stderr == (
        f"server: cannot listen on 127.0.0.1 port {taken_port}: Address already in use. "
        f"give another {flag} (0 chooses a free one), or stop what uses it\n"
    )


@pytest.mark.I9
@pytest.mark.parametrize(
    "arguments, variables, problem",
    [
        ([], {}, "--export-dir is missing"),
        ([*DIRECTORIES, "--port", "99999"], {}, "--port is 99999"),
        ([*DIRECTORIES, "--port", "http"], {}, "not a whole number"),
        ([*DIRECTORIES, "--port", "8500", "--grpc-port", "8500"], {}, "--grpc-port is 8500, as --port is"),
        (DIRECTORIES, {"HOTDELTA_MAX_QUEUE": "0"}, "--max-queue is 0"),
        ([*DIRECTORIES, "--sanity", "max_abs=1", "--sanity", "users:max=1"], {}, "there is no limit 'max'"),
        ([*DIRECTORIES, "--export-dir", __file__], {}, "which is not a directory"),
    ],
)
def test_wrong_usage_is_refused_with_exit_code_2(
    arguments: list[str], variables: dict[str, str], problem: str
) -> None:
    refused = run_server(*arguments, **variables)

    assert refused.returncode == 2
    assert problem in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "host, port, problem",
    [
        ("192.0.2.1", 0, "Cannot assign requested address. give an address of this machine, or 0.0.0.0"),
        ("a" * 64, 0, "is not a host name. give an address of this machine"),
        ("a..b", 0, "is not a host name. give an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_had_is_refused_with_what_to_change(
    host: str, port: int, problem: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        bind(host, port)

    assert problem in str(refused.value)


def test_importing_the_application_starts_nothing_and_needs_no_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys, threading, server.app, server.cli, server.http.listening; "
        "assert 'tensorflow' not in sys.modules; assert threading.active_count() == 1"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=LIMIT_SECONDS).returncode == 0


STOPPED_BEFORE_UVICORN_HEARS_SIGNALS = """
import os, signal, fastapi, uvicorn
from server.http.connection_limits import BufferedBytes, ConnectionLimits
from server.http.listening import bind, run

LIMITS = ConnectionLimits(10, 30.0, BufferedBytes(2**20))

class Ending:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def stop(config):
    Ending()
    return choose_loop(config)

choose_loop, uvicorn.Config.get_loop_factory = uvicorn.Config.get_loop_factory, stop
run(fastapi.FastAPI(), bind("127.0.0.1", 0), stop_seconds=1, limits=LIMITS, announcement="listening on {}".format)
"""


def test_a_signal_just_before_it_serves_is_not_lost() -> None:
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED_BEFORE_UVICORN_HEARS_SIGNALS],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (0, "", "")


SERVES_UNTIL_IT_IS_TOLD_TO_STOP = """
import fastapi, server.cli
from server.http.connection_limits import BufferedBytes, ConnectionLimits
from server.http.listening import bind, run

LIMITS = ConnectionLimits(10, 30.0, BufferedBytes(2**20))

server.cli._hear_signals()
run(fastapi.FastAPI(), bind("127.0.0.1", 0), stop_seconds=1, limits=LIMITS, announcement="listening on {}".format)
print("stopped in order")
"""


def test_a_terminal_that_is_closed_stops_it_in_order() -> None:
    # It would be ignored in a child, too, where these tests run under nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(
        [sys.executable, "-c", SERVES_UNTIL_IT_IS_TOLD_TO_STOP], stdout=subprocess.PIPE, text=True
    ) as process:
        signal.signal(signal.SIGHUP, before)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ")
        process.send_signal(signal.SIGHUP)
        assert (process.stdout.read(), process.wait(60)) == ("stopped in order\n", 0)


HEARS_HANG_UPS = """
import fastapi, signal
from server.http.connection_limits import BufferedBytes, ConnectionLimits
from server.http.listening import HangUps, bind, run

LIMITS = ConnectionLimits(10, 30.0, BufferedBytes(2**20))

hang_ups = HangUps()
hang_ups.when_heard = lambda: print("heard", flush=True)
signal.raise_signal(signal.SIGHUP)
signal.raise_signal(signal.SIGHUP)
run(fastapi.FastAPI(), bind("127.0.0.1", 0), stop_seconds=1, limits=LIMITS, announcement=str, hang_ups=hang_ups)
print("stopped in order")
"""


def test_a_hang_up_that_means_the_file_is_heard_and_one_before_the_server_listens_waits() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HEARS_HANG_UPS], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        # Two that came early are one.
        assert process.stdout.readline() == "heard\n"
        assert process.stdout.readline().startswith("http://")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "heard\n"
        process.send_signal(signal.SIGTERM)
        assert (process.stdout.read(), process.wait(60)) == ("stopped in order\n", 0)


def test_under_nohup_a_terminal_that_is_closed_is_nothing_to_it() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        server.cli._hear_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


STOPPED_WHEN_IT_SAYS_ITS_ADDRESS = """
import os, signal, fastapi
from server.http.connection_limits import BufferedBytes, ConnectionLimits
from server.http.listening import bind, run

LIMITS = ConnectionLimits(10, 30.0, BufferedBytes(2**20))

def stop(url):
    os.kill(os.getpid(), signal.SIGTERM)
    return url

run(fastapi.FastAPI(), bind("127.0.0.1", 0), stop_seconds=1, limits=LIMITS, announcement=stop)
"""


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_an_address_that_nobody_can_read_is_no_reason_not_to_serve(redirection: str) -> None:
    program = [sys.executable, "-c", STOPPED_WHEN_IT_SAYS_ITS_ADDRESS]
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *program]
    stopped = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=False)

    assert (stopped.returncode, stopped.stderr) == (0, "")
