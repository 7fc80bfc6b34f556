"""Colour for terminals that want it, plain text for all others, and nothing that moves a cursor."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.cli.output import ByteProgress, Cell, format_rows
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


def test_a_bar_appears_only_when_the_work_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        encoding = "utf-8"
        said = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            self.said += text
            return len(text)

        def flush(self) -> None: ...

    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    progress = ByteProgress("checked", 1000, clock=lambda: now[0])
    progress.add(100)
    assert terminal.said == ""
    now[0] = 5.0
    progress.add(100)
    progress.add(800)
    progress.stop()
    assert "checked" in terminal.said
