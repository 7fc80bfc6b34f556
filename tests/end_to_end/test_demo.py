"""The first thing that a visitor does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples.demo_screen import COLUMNS
from examples.interruption import SIGNALS, Interruption
from tests.waiting import LIMIT_SECONDS


def run_demo(directory: Path, *, is_interrupted: bool) -> tuple[int, str]:
    """The exit code and what it showed; interrupted as an impatient Ctrl-C does from the first prediction on."""
    environment = {**os.environ, "TMPDIR": str(directory), "DEMO_SECONDS": "" if is_interrupted else "1"}
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    shown = []
    with process.stdout:
        for line in process.stdout:
            shown.append(line)
            if is_interrupted and any(re.match(r" *\d+s ", text) for text in shown):
                process.send_signal(signal.SIGINT)
    return process.wait(LIMIT_SECONDS), "".join(shown)


def processes_of(directory: Path) -> list[list[str]]:
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if any(str(directory) in word for word in command)]


@pytest.mark.parametrize("is_interrupted", [pytest.param(False, marks=pytest.mark.soak), True])
def test_the_demo_shows_both_log_losses_and_leaves_nothing_behind(
    tmp_path: Path, is_interrupted: bool
) -> None:
    """That it stops by itself after DEMO_SECONDS is in soak: all else is the same, and takes half a minute."""
    code, shown = run_demo(tmp_path, is_interrupted=is_interrupted)

    assert code == 0, shown
    assert re.search(r"served, followed from 1\.\d+ to 1\.\d+ +\d\.\d{3}", shown)
    assert re.search(r"the same model, frozen at 1\.\d+ +\d\.\d{3}", shown)
    assert re.search(r"p50 \d+ ms, p99 \d+ ms|no update was served", shown)
    assert max(map(len, shown.splitlines())) <= COLUMNS
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


class Ending:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_a_destructor_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: ignored.append((each.exc_type, each.object)))
    before = {number: signal.getsignal(number) for number in SIGNALS}
    interruption = Interruption()
    interruption.listen()
    try:
        interruption.check()
        Ending()
        # Of others, whose garbage may be collected now, there may be more.
        assert [kind for kind, where in ignored if where is Ending.__del__] == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
