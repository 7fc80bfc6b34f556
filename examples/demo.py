"""`make demo`: a model that learns while it serves, on this machine, with real processes.

A trainer learns from a stream of clicks whose tastes drift and commits a delta every half second; the exporter makes
one SavedModel of it; the server applies each delta to its live tables; a client asks over HTTP. Runs until Ctrl-C, or
for DEMO_SECONDS.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx

from examples import demo_screen
from examples.demo_client import Client, Reading
from examples.demo_screen import Update
from examples.processes import Child, ChildFailedError, Children

SAVE_INCREMENTAL_SECONDS = 0.5
SAVE_SECONDS = 20.0
START_LIMIT_SECONDS = 180.0
LEAST_WATCH_SECONDS = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Demo:
    """The three processes, what they say, and the clock since the start."""

    def __init__(self, directory: Path, children: Children) -> None:
        self._directory = directory
        self._children = children
        self._start = time.monotonic()
        self._address = ""
        self._is_exported = False
        self.updates: list[Update] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        show(demo_screen.note(self.seconds, text))

    def start(self) -> tuple[Child, Child, Child]:
        run, export = str(self._directory / "run"), str(self._directory / "export")
        trainer = self._launch(
            "trainer",
            "examples.train",
            f"--checkpoint-dir {run} --save-incremental-secs {SAVE_INCREMENTAL_SECONDS} --save-secs {SAVE_SECONDS}",
            self._hear_trainer,
        )
        exporter = self._launch(
            "exporter",
            "exporter.cli",
            f"--checkpoint-dir {run} --export-dir {export} --save-incr-model --model-name clicks --wait 120",
            self._hear_exporter,
        )
        server = self._launch(
            "server",
            "server.cli",
            f"--export-dir {export} --checkpoint-dir {run} --port 0 --log-format json",
            self._hear_server,
        )
        return trainer, exporter, server

    def wait_until_ready(self, trainer: Child, exporter: Child, server: Child) -> Client:
        """Says that it is still alive every few seconds. Raises ChildFailedError."""
        self._wait("TensorFlow is being imported", lambda: bool(self._address), trainer, server)
        client = Client(self._address, clock=time.time)
        self._wait(
            "the model is being exported",
            lambda: self._is_exported or exporter.check_not_failed(),
            trainer,
            server,
        )
        self._wait("the server is loading the model", client.is_ready, trainer, server)
        return client

    def watch(self, client: Client, until: float, *children: Child) -> list[Reading]:
        """A line per second. Ctrl-C ends it."""
        readings: list[Reading] = []
        stop = threading.Event()
        asking = threading.Thread(target=client.keep_asking, args=(stop,), name="traffic", daemon=True)
        asking.start()
        try:
            while self.seconds < until:
                for child in children:
                    child.check()
                readings.append(client.read())
                newest = next(reversed(self.updates_after(readings[0])), None)
                show(demo_screen.line(self.seconds, readings[-1], newest))
                stop.wait(1.0)
        except KeyboardInterrupt:
            show("")
        finally:
            stop.set()
            asking.join(5)
        return readings

    def updates_after(self, first: Reading) -> list[Update]:
        """Without the one that was live before anybody asked: its lag is the time until somebody did."""
        return [update for update in self.updates if update.position != first.position]

    def _launch(self, name: str, module: str, arguments: str, on_line: Callable[[str], None]) -> Child:
        command = module.removesuffix(".cli") if module.endswith(".cli") else f"python -m {module}"
        self.say(f"starting {name}: {command} {arguments.replace(f'{self._directory}/', '')}")
        return self._children.start(name, module, shlex.split(arguments), on_line)

    def _wait(self, what: str, is_done: Callable[[], bool], *children: Child) -> None:
        next_word = self.seconds + 3
        while not is_done():
            for child in children:
                child.check()
            if self.seconds > START_LIMIT_SECONDS:
                raise ChildFailedError(f"after {self.seconds:.0f} s still: {what}")
            if self.seconds > next_word:
                self.say(f"{what} ...")
                next_word = self.seconds + 3
            time.sleep(0.1)

    def _hear_trainer(self, text: str) -> None:
        if text.startswith(("new run", "resumed")):
            self.say(f"trainer: {text}, learning")

    def _hear_exporter(self, text: str) -> None:
        if text.startswith(str(self._directory)):
            self._is_exported = True
            self.say("exporter: wrote export/1, which takes fulls and deltas")

    def _hear_server(self, text: str) -> None:
        if found := re.fullmatch(r"listening on (\S+)", text):
            self._address = found[1]
            self.say(f"server: {text}")
            return
        try:
            record = json.loads(text) if text.startswith("{") else {}
        except ValueError:
            return
        if record.get("level") in ("WARNING", "ERROR"):
            self.say(f"server: {text}")
        if record.get("message") == "update served" and record.get("kind") == "delta":
            self.updates.append(Update(record["position"], record["rows"], record["total_ms"]))


def main() -> int:
    try:
        limit = float(os.environ.get("DEMO_SECONDS") or "inf")
    except ValueError:
        print(
            f"demo: DEMO_SECONDS is {os.environ['DEMO_SECONDS']!r}, not a number of seconds", file=sys.stderr
        )
        return 2
    # SIGINT too: a shell that starts us in the background has it ignored, and Python then leaves it so.
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="hotdelta-demo-") as name:
            directory = Path(name)
            with Children(temporary=directory) as children:
                return _run(Demo(directory, children), limit)
    except KeyboardInterrupt:
        print("\nstopped before there was something to show", file=sys.stderr)
        return 130
    except (ChildFailedError, httpx.HTTPError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1


def show(text: str) -> None:
    """Print a line. When nobody reads on (`make demo | head`), stop as for Ctrl-C, and with it the children."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        signal.raise_signal(signal.SIGTERM)


def _run(demo: Demo, limit: float) -> int:
    trainer, exporter, server = demo.start()
    client = demo.wait_until_ready(trainer, exporter, server)
    # What was committed while nobody could ask says nothing about the lag.
    demo.updates.clear()
    show(f"\n{demo_screen.LEGEND}\n\n{demo_screen.HEADER}")
    readings = demo.watch(client, max(limit, demo.seconds + LEAST_WATCH_SECONDS), trainer, server)
    client.close()
    if readings:
        show(f"\n{demo_screen.summary(readings, demo.updates_after(readings[0]))}\n")
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """The first time only: a second Ctrl-C would leave the children behind that the first one is stopping."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
