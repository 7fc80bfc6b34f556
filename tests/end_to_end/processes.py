"""The real programs as processes: started, asked, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import httpx
import numpy as np

from tests.end_to_end.probes import PROBES
from tests.waiting import LIMIT_SECONDS, wait_until

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}

Bits = list[int]


class Process(Protocol):
    """What a Program needs of subprocess.Popen."""

    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None

    def poll(self) -> int | None: ...
    def wait(self, seconds: float, /) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...


class Program:
    """A Python module as a process, whose standard error goes to a file. Killed when the test is over."""

    def __init__(self, module: str, *arguments: str, errors: Path) -> None:
        self._errors = errors
        self.process = self._start(module, arguments, errors)

    def _start(self, module: str, arguments: Sequence[str], errors: Path) -> Process:
        with errors.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-u", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, **ENVIRONMENT},
            )

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self._end()

    def stop(self, number: signal.Signals) -> int:
        """The exit code after this signal."""
        self.process.send_signal(number)
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(LIMIT_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return code

    def _read_line(self) -> str:
        line = self._stdout.readline()
        assert line, f"it ended:\n{self.said}"
        return line

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


class Trainer(Program):
    """`trainer_program`, told by us when to train and when to commit."""

    def __init__(self, checkpoint_dir: Path | str, errors: Path) -> None:
        super().__init__("tests.end_to_end.trainer_program", str(checkpoint_dir), errors=errors)
        self.start = json.loads(self._read_line())

    def train(self, user: int, item: int, *, steps: int = 1) -> None:
        self._ask({"do": "train", "user": user, "item": item, "steps": steps})

    def spoil(self, user: int, value: float) -> None:
        self._ask({"do": "spoil", "user": user, "value": value})

    def save(self) -> tuple[str, Bits]:
        return self._commit("save")

    def save_full(self) -> tuple[str, Bits]:
        return self._commit("save_full")

    def begin(self, command: dict[str, Any]) -> None:
        """Tell without waiting for the answer: for a trainer that will not live to give it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def _commit(self, command: str) -> tuple[str, Bits]:
        answer = self._ask({"do": command})
        return answer["position"], answer["bits"]

    def _ask(self, command: dict[str, Any]) -> Any:
        self.begin(command)
        return json.loads(self._read_line())


class ServerProgram(Program):
    """The command `server` on a port that the system chose. A launcher is a module, and its flags, that starts it."""

    def __init__(self, *flags: str, errors: Path, launcher: Sequence[str] = ()) -> None:
        super().__init__(
            *launcher, "server.cli", "--port", "0", "--log-format", "json", *flags, errors=errors
        )
        self.url = json.loads(self._read_line())["url"]
        assert self.url.startswith("http://127.0.0.1:")
        self.http = connect(self.url)
        self.rpc_address = ""
        if "--grpc-port" in flags:
            self.rpc_address = json.loads(self._read_line())["url"].removeprefix("grpc://")

    def _end(self) -> int:
        self.http.close()
        return super()._end()

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.http.get("/readyz").status_code == 200, "the server is ready")


class Server(ServerProgram):
    """Of one model, without a name."""

    def __init__(
        self,
        export_dir: Path | str,
        checkpoint_dir: Path | str,
        errors: Path,
        *flags: str,
        launcher: Sequence[str] = (),
    ) -> None:
        directories = ["--export-dir", str(export_dir), "--checkpoint-dir", str(checkpoint_dir)]
        super().__init__(*directories, *flags, errors=errors, launcher=launcher)

    def version(self) -> Any:
        return self.http.get("/model/version").raise_for_status().json()

    def probe(self, min_position: str) -> tuple[str, Bits]:
        """The bits of the predictions for all probes, from that position or a later one."""
        answer = self.predict(question(PROBES, min_position))
        return answer.json()["version"]["position"], bits_of(answer)

    def predict(self, document: dict[str, Any]) -> httpx.Response:
        """An answer from the position that is wanted, however long it takes to be served."""
        end = time.monotonic() + LIMIT_SECONDS
        while (answer := self.http.post("/predict", json=document)).status_code == httpx.codes.CONFLICT:
            assert time.monotonic() < end, answer.text
        return answer.raise_for_status()


def connect(url: str) -> httpx.Client:
    """A client that leaves an idle connection long before the server hangs up on it, which may be while we ask."""
    kept = httpx.Limits(keepalive_expiry=1.0)
    return httpx.Client(base_url=url, timeout=LIMIT_SECONDS, trust_env=False, limits=kept)


def question(pairs: list[tuple[int, int]], min_position: str | None = None) -> dict[str, Any]:
    users, items = zip(*pairs, strict=True)
    document: dict[str, Any] = {"inputs": {"user": users, "item": items}}
    return document if min_position is None else {**document, "min_position": min_position, "wait_ms": 10_000}


def bits_of(answer: httpx.Response) -> Bits:
    scores = np.array(answer.json()["outputs"]["score"], np.float32).reshape(-1)
    bits: Bits = scores.view(np.uint32).tolist()
    return bits
