"""What is left out while TensorFlow is imported, what is not, and who decides."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.waiting import LIMIT_SECONDS

GREETING = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    "I0000 00:00:1794828160.676918    4700 port.cc:153] oneDNN custom operations are on.\n"
)


def stderr_of(code: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    program = f"import os, sys\nfrom hotdelta.quiet_import import quiet_import\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables},
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    ).stderr


BLOCK = f"""
with quiet_import():
    os.write(2, {GREETING.encode()!r})
    print("W0000 a warning", os.environ["TF_CPP_MIN_LOG_LEVEL"], file=sys.stderr)
os.write(2, b"I0000 after it\\n")
"""


@pytest.mark.parametrize("level", ["1", "2", "3"])
def test_a_level_that_hides_information_hides_the_greeting_and_nothing_else(level: str) -> None:
    said = stderr_of(BLOCK, TF_CPP_MIN_LOG_LEVEL=level)

    assert said == f"W0000 a warning {level}\nI0000 after it\n"


def test_without_a_level_errors_are_hidden_too() -> None:
    assert stderr_of(BLOCK) == "W0000 a warning 3\nI0000 after it\n"


def test_who_asks_for_everything_sees_the_greeting() -> None:
    assert stderr_of(BLOCK, TF_CPP_MIN_LOG_LEVEL="0").startswith(GREETING)


def test_last_words_before_an_abort_get_through() -> None:
    said = stderr_of(
        f"with quiet_import():\n os.write(2, {GREETING.encode()!r} + b'F0000 no AVX\\n')\n os.abort()"
    )

    assert said == "F0000 no AVX\n"


def test_however_slow_the_sieve_is_nothing_overtakes_what_goes_through_it() -> None:
    code = """
import psutil, threading
with quiet_import():
    (sieve,) = psutil.Process().children()
    sieve.suspend()
    threading.Timer(1.2, sieve.resume).start()
    os.write(2, b"first\\nthe beginning of a line")
print(" and its end", file=sys.stderr)
"""

    assert stderr_of(code) == "first\nthe beginning of a line and its end\n"


def test_a_standard_error_that_nobody_reads_does_not_hold_up_the_import() -> None:
    code = """
import hotdelta.quiet_import, psutil
hotdelta.quiet_import._PATIENCE_SECONDS = 0.1
said, (unread, full) = os.dup(2), os.pipe()
def fill(pipe):
    os.set_blocking(pipe, False)
    try:
        while True:
            os.write(pipe, b"unread\\n")
    except BlockingIOError:
        os.set_blocking(pipe, True)
fill(full)
os.dup2(full, 2)
with quiet_import():
    (sieve,) = psutil.Process().children()
    SAY
sieve.resume()
os.write(said, b"imported\\n")
"""

    for say in ("os.write(2, b'a line\\n')", "sieve.suspend(); fill(2)"):
        assert stderr_of(code.replace("SAY", say)) == "imported\n"


def test_a_process_that_stays_is_not_waited_for() -> None:
    starts = "import subprocess\n"
    starts += "with quiet_import():\n stays = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)\n"
    said = stderr_of(starts + "print('imported', stays.poll(), file=sys.stderr)\nstays.kill()")

    assert said == "imported None\n"


def test_an_exception_leaves_standard_error_as_it_was() -> None:
    said = stderr_of(
        "import warnings\nwarnings.simplefilter('always')\nwith quiet_import():\n raise SystemExit('I0000 stopped')"
    )

    assert said == "I0000 stopped\n"


@pytest.mark.parametrize("command", ["exporter.cli", "server.cli", "hotdelta.cli"])
def test_a_command_imports_tensorflow_only_when_it_needs_it(command: str) -> None:
    """So that `--help` answers at once, and so that the greeting can be left out."""
    assert stderr_of(f"import {command}\nassert 'tensorflow' not in sys.modules") == ""
