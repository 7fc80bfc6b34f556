"""`hotdelta tail`: every update once, with its lag, whatever happens to the server meanwhile."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from hotdelta.chain import Position
from hotdelta.cli.servers.http import ServerHttp
from hotdelta.cli.servers.tail import Feed, LineView, Seen, TableView, follow
from hotdelta.errors import RequestError
from loader import Lag
from loader.status import LoaderStatus
from tests.cli.conftest import Run
from tests.server.connections import serving
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS

NOW = 1_750_000_000.0


def lag_of(seq: int, *, is_served: bool) -> Lag:
    return Lag(
        position=Position(3, seq),
        step=seq,
        kind="delta",
        rows=1200 + seq,
        bytes=52_000,
        event_at=NOW - 0.5,
        trained_at=NOW - 0.3,
        committed_at=NOW - 0.2,
        seen_at=NOW - 0.195,
        verify_ms=1.0,
        stage_ms=2.0,
        preimage_ms=0.5,
        gate_wait_ms=0.25,
        apply_ms=0.125,
        applied_at=NOW + seq,
        first_served_at=NOW + seq + 0.001 if is_served else None,
    )


class UpdatedModel(FakeModel):
    """Says that the update `seq` was applied."""

    seq = 0
    is_served = True

    def status(self) -> LoaderStatus:
        if not self.seq:
            return super().status()
        return replace(
            super().status(), updates=self.seq, last_lag=lag_of(self.seq, is_served=self.is_served)
        )


def status_of(seq: int, updates: int | None = None, *, is_served: bool = True) -> dict[str, Any]:
    lag = {"position": f"3.{seq}", "kind": "delta", "applied_at": str(seq), "rows": 1}
    served = str(seq) if is_served else None
    return {
        "updates": updates if updates is not None else seq,
        "last_update": {**lag, "first_served_at": served},
    }


def positions(seen: Iterator[Seen]) -> list[tuple[str, int]]:
    return [(item.update["position"], item.missed) for item in seen]


def test_each_update_is_told_once() -> None:
    feed = Feed()
    assert positions(feed.see({"updates": 0, "last_update": None})) == []
    assert positions(feed.see(status_of(1))) == [("3.1", 0)]
    assert positions(feed.see(status_of(1))) == []
    assert positions(feed.see(status_of(2))) == [("3.2", 0)]


def test_updates_between_two_looks_are_counted() -> None:
    feed = Feed()
    assert positions(feed.see(status_of(7))) == [("3.7", 0)]
    assert positions(feed.see(status_of(10))) == [("3.10", 2)]


def test_an_update_waits_for_its_first_answer_but_not_for_ever() -> None:
    feed = Feed()
    assert positions(feed.see(status_of(1, is_served=False))) == []
    assert positions(feed.see(status_of(1, is_served=True))) == [("3.1", 0)]
    for _ in range(2):
        assert positions(feed.see(status_of(2, is_served=False))) == []
    assert positions(feed.see(status_of(2, is_served=False))) == [("3.2", 0)]
    assert positions(feed.see(status_of(2, is_served=True))) == []


def test_an_update_that_another_one_follows_is_told_before_it() -> None:
    feed = Feed()
    assert positions(feed.see(status_of(1, is_served=False))) == []
    assert positions(feed.see(status_of(2))) == [("3.1", 0), ("3.2", 0)]


def test_a_server_that_was_started_again_has_missed_nothing() -> None:
    feed = Feed()
    assert positions(feed.see(status_of(9))) == [("3.9", 0)]
    assert positions(feed.see(status_of(11, updates=1))) == [("3.11", 0)]


@contextmanager
def following(model: UpdatedModel) -> Iterator[ServerHttp]:
    with serving(model) as (host, port), ServerHttp(f"http://{host}:{port}", timeout_seconds=60) as server:
        yield server


def updating(model: UpdatedModel) -> Callable[[], None]:
    """Instead of waiting: the next update."""

    def update() -> None:
        model.seq += 1

    return update


def test_lines_have_the_lag_that_the_server_measured(capsys: pytest.CaptureFixture[str]) -> None:
    model = UpdatedModel()
    with following(model) as server:
        follow(server, LineView(), 2, wait=updating(model))
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["position", "rows", "bytes", "train"]
    assert [line.split() for line in lines] == [
        ["3.1", "1,201", "52", "KB", "200", "100", "5", "3.5", "0.25", "0.12", "1,201"],
        ["3.2", "1,202", "52", "KB", "200", "100", "5", "3.5", "0.25", "0.12", "2,201"],
    ]


def test_a_terminal_gets_one_table_that_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    model, screen = UpdatedModel(), io.StringIO()
    view = TableView(screen)
    with following(model) as server:
        follow(server, view, 2, wait=updating(model))
    view.close()
    said = screen.getvalue()
    assert "following" in said
    last = said.split("position")[-1]
    for number in ("3.2", "1,202", "52 KB", "200", "100", "3.5", "0.25", "0.12", "2,201"):
        assert number in last, "nothing is cut in a terminal of 80 columns"


def test_a_server_that_falls_silent_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The address of one that has gone is nobody's, until another one answers there."""

    class Gone(ServerHttp):
        asked = 0

        def get(self, path: str) -> Any:
            self.asked += 1
            if self.asked in (2, 3):
                raise RequestError(f"{self.url} cannot be asked: refused")
            return super().get(path)

    model = UpdatedModel()
    with serving(model) as (host, port), Gone(f"http://{host}:{port}", timeout_seconds=60) as server:
        follow(server, LineView(), 3, wait=updating(model))
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"hotdelta: http://{host}:{port} cannot be asked: refused",
        "hotdelta: the server answers again",
    ]
    assert [line.split()[0] for line in said.out.splitlines()] == ["position", "3.3", "3.4", "3.5"]


def test_scripts_get_a_document_in_each_line(run: Run) -> None:
    model = UpdatedModel()
    model.seq = 4
    with serving(model) as (host, port):
        done = run("tail", f"http://{host}:{port}", "--json", "-n", 1)
    document = json.loads(done.out)
    assert done.code == 0
    assert (document["position"], document["missed"]) == ("3.4", 0)
    assert document["lag_ms"]["committed_to_served"] == pytest.approx(4201.0)


def test_ctrl_c_ends_it_without_a_word() -> None:
    model = UpdatedModel()
    model.seq = 1
    command = [sys.executable, "-u", "-m", "hotdelta", "tail", "--interval", "0.01"]
    with (
        serving(model) as (host, port),
        subprocess.Popen(
            [*command, f"http://{host}:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("position")
            assert process.stdout.readline().startswith("3.1")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(
    "url, code", [("http://127.0.0.1:9", 1), ("127.0.0.1:8000", 2), ("http://127.0.0.1:x", 2)]
)
def test_without_a_server_it_does_not_begin(run: Run, url: str, code: int) -> None:
    done = run("tail", url)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("hotdelta: ")


def test_what_is_no_server_of_hotdelta_is_said(run: Run) -> None:
    with serving(FakeModel()) as (host, port):
        done = run("tail", f"http://{host}:{port}/docs")
    assert done.code in (1, 2)
    assert "Traceback" not in done.err
