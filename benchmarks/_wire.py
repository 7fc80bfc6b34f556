"""Load on servers by tools in C, which take little of the machine that they share: wrk (HTTP/1.1), h2load (gRPC)."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._server_processes import ServerProcess

_SCRIPT = Path(__file__).with_name("_requests.lua")
_H2LOAD = re.compile(
    r"requests: \d+ total, \d+ started, \d+ done, (\d+) succeeded, (\d+) failed, (\d+) errored"
)
_PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}


@dataclass(frozen=True, slots=True)
class WireLoad:
    """Of some seconds of asking. `server_cpu_us`: of all processes of the server, for each answer."""

    per_second: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float


def require_tools(tools: Sequence[str] = tuple(_PACKAGES)) -> None:
    """They are Debian packages; where we may, they are installed."""
    missing = [_PACKAGES[tool] for tool in tools if shutil.which(tool) is None]
    script = Path(__file__).resolve().parents[1] / "scripts" / "debian-packages"
    if missing and subprocess.run([str(script), *missing], check=False).returncode != 0:
        raise SystemExit(f"this benchmark needs {' and '.join(missing)}")


def write_requests(path: Path, requests: Sequence[bytes]) -> Path:
    path.write_bytes(b"".join(b"%d\n%b" % (len(request), request) for request in requests))
    return path


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ask_by_wrk(server: ServerProcess, requests: Path, *, connections: int, seconds: int) -> WireLoad:
    """Each connection asks again when it has its answer. Raises SystemExit for any answer that is an error."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(_SCRIPT)]
    before = server.cpu_seconds()
    said = subprocess.check_output([*command, server.url, "--", str(requests)], text=True)
    took = server.cpu_seconds() - before
    found = json.loads(said.splitlines()[-1])
    if found["failures"]:
        raise SystemExit(f"{server.name} failed {found['failures']} times of {found['answers']}:\n{said}")
    answers = found["answers"]
    return WireLoad(
        answers / found["seconds"], found["p50_ms"], found["p99_ms"], took / max(answers, 1) * 1e6
    )


def ask_by_h2load(
    server: ServerProcess, url: str, message: Path, *, connections: int, seconds: int
) -> WireLoad:
    """The same call of gRPC again and again, one at a time on each connection. It does not tell of percentiles."""
    options = [f"-c{connections}", "-m1", "-t1", f"-D{seconds}", "-d", str(message)]
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    command = ["h2load", *options, *headers, url]
    before = server.cpu_seconds()
    said = subprocess.check_output(command, text=True)
    took = server.cpu_seconds() - before
    found = _H2LOAD.search(said)
    if found is None or found[2] != "0" or found[3] != "0":
        raise SystemExit(f"h2load could not ask {server.name}:\n{said}")
    answers = int(found[1])
    return WireLoad(answers / seconds, float("nan"), float("nan"), took / max(answers, 1) * 1e6)


def median_of(loads: Sequence[WireLoad]) -> WireLoad:
    return WireLoad(
        *(statistics.median(getattr(load, name) for load in loads) for name in WireLoad.__slots__)
    )
