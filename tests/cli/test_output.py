"""Colour for terminals that want it, plain text for all others, and nothing that moves a cursor."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.cli.output import Cell, format_rows
from hotdelta.logs import ProgressLog
from hotdelta.terminal import Bar, progress_bars
from tests.cli.conftest import Run
from tests.waiting import LIMIT_SECONDS

ESCAPE = "\x1b["


def in_terminal(*arguments: object, **variables: str) -> str:
    """What the command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color", **variables}
    with subprocess.Popen(
        [sys.executable, "-m", "hotdelta", *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        env={name: value for name, value in environment.items() if value},
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65536):
                said += piece
        except OSError:
            # Linux says so when the last one who had the terminal open is gone.
            pass
        assert process.wait(LIMIT_SECONDS) == 0
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colour_and_the_same_words(forked: Path, run: Run) -> None:
    said = in_terminal("log", forked, NO_COLOR="")
    assert ESCAPE in said
    for word in ("newest", "abandoned", "forked by 2.1", "87.1 KB"):
        assert word in said


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb", "NO_COLOR": ""}])
def test_who_wants_no_colour_gets_plain_text(forked: Path, variables: dict[str, str]) -> None:
    said = in_terminal("log", forked, **variables)
    assert ESCAPE not in said
    assert "abandoned" in said


def test_what_others_wrote_cannot_move_the_cursor() -> None:
    assert format_rows((), [(Cell("a\x1b[2Jb"), "c\nd")], align="ll") == "a\ufffd[2Jb  c\ufffdd"


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert format_rows(("name", "n"), [("x", "1,000"), ("long name", "2")], align="lr") == (
        "name           n\nx          1,000\nlong name      2"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """As standard error, for the test that calls it: pytest takes it back between a fixture and its test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_a_bar_appears_only_when_the_work_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = open_terminal(monkeypatch), [0.0]
    bar = Bar(clock=lambda: now[0])
    bar.tell("checked bytes of", 100, 1000)
    assert terminal.getvalue() == ""
    now[0] = 5.0
    bar.tell("checked bytes of", 1000, 1000)
    bar.stop()
    assert "checked" in terminal.getvalue()
    assert "1.0/1.0 kB" in terminal.getvalue()


def test_each_work_has_a_bar_of_its_own_which_goes_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = open_terminal(monkeypatch), [0.0]
    bar = Bar(clock=lambda: now[0])

    def work(what: str) -> str:
        """What the terminal got meanwhile; it takes three seconds."""
        before = len(terminal.getvalue())
        for done in range(3):
            bar.tell(what, done, 3)
            now[0] += 1
        return terminal.getvalue()[before:]

    for what in ("checking files", "reading deltas", "reading deltas"):
        shown = work(what)
        assert what in shown
        assert shown.rstrip().endswith("\x1b[2K"), "the bar is gone"
        assert "\x1b[?25h" in shown, "and the cursor is back"


def test_progress_goes_to_bars_in_a_terminal_and_into_the_log_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_terminal(monkeypatch)
    caplog.set_level("INFO", "hotdelta.logs")
    clock = iter(range(0, 1000, 10))
    with progress_bars():
        ProgressLog("reading deltas", of=2, clock=lambda: next(clock)).tell(1)
    assert not caplog.records
    monkeypatch.setenv("NO_COLOR", "1")
    with progress_bars():
        ProgressLog("reading deltas", of=2, clock=lambda: next(clock)).tell(1)
    assert "reading deltas" in caplog.text
