"""The demo on its way: the processes that it starts, what they say, and what is shown of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples import click_stream, demo_screen
from examples.demo_client import Client, Reading
from examples.demo_screen import Update
from examples.interruption import Interruption
from examples.processes import Child, ChildFailedError, Children

SAVE_INCREMENTAL_SECONDS = 0.5
SAVE_SECONDS = 20.0
START_LIMIT_SECONDS = 180.0
LEAST_WATCH_SECONDS = 5.0
_EVERY_RECORD = ("time", "level", "logger", "message")


def run(directory: Path, children: Children, limit: float, interruption: Interruption) -> None:
    """Until `limit` seconds are over, or KeyboardInterrupt. Raises ChildFailedError."""
    demo = Demo(directory, children, interruption)
    show(
        demo_screen.introduction(
            users=click_stream.NUM_USERS, items=click_stream.NUM_ITEMS, limit_seconds=limit
        )
    )
    trainer, exporter, server = demo.start()
    client = demo.wait_until_ready(trainer, exporter, server)
    # What was committed while nobody could ask says nothing about the lag.
    demo.updates.clear()
    show(f"\n{demo_screen.LEGEND}\n\n{demo_screen.invitation(demo.address)}")
    readings = demo.watch(client, max(limit, demo.seconds + LEAST_WATCH_SECONDS), trainer, server)
    client.close()
    if readings:
        show(f"\n{demo_screen.summary(readings, demo.updates_after(readings[0]))}\n")
    show("  stopping trainer and server ...")


class Demo:
    """The three processes, what they say, and the clock since the start."""

    def __init__(self, directory: Path, children: Children, interruption: Interruption) -> None:
        self._directory = directory
        self._children = children
        self._interruption = interruption
        self._start = time.monotonic()
        self.address = ""
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
        self._wait("TensorFlow is being imported", lambda: bool(self.address), trainer, server)
        client = Client(self.address, self._directory / "run", clock=time.time)
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
                self._interruption.check()
                for child in children:
                    child.check()
                readings.append(client.read())
                newest = next(reversed(self.updates_after(readings[0])), None)
                if len(readings) % demo_screen.HEADER_EVERY_LINES == 1:
                    show(f"\n{demo_screen.HEADER}")
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
            self._interruption.check()
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
        try:
            record: dict[str, Any] = json.loads(text)
        except ValueError:
            return
        fields = {name: value for name, value in record.items() if name not in _EVERY_RECORD}
        if record["message"] == "listening":
            self.address = record["url"]
            self.say(f"server: listening on {self.address}")
        elif record["message"] == "update served" and record["kind"] == "delta":
            self.updates.append(Update(record["position"], record["rows"], record["total_ms"]))
        elif record["level"] in ("WARNING", "ERROR"):
            self.say(f"server: {record['message']} {fields}")


def show(text: str) -> None:
    """Print a line. When nobody reads on (`make demo | head`), stop as for Ctrl-C, and with it the children."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        signal.raise_signal(signal.SIGTERM)
