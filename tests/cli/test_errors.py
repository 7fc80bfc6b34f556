"""What goes wrong is one line that says what to do, and an exit code that a script can tell from others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from hotdelta.cli.parser import make_parser
from tests.cli.conftest import Run
from tests.waiting import LIMIT_SECONDS


def of_directories() -> list[str]:
    """The commands whose first argument is a directory, and which want no other."""
    return ["log", "show", "verify", "chain", "describe"]


def started(*arguments: object, stdout: int | IO[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotdelta", *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("command", of_directories())
@pytest.mark.parametrize(
    "name, problem",
    [
        ("nowhere", "does not exist. give the directory that the trainer writes to"),
        ("file", "is not a directory"),
        ("empty", "nothing is committed in"),
        ("above", "did you mean"),
        ("export", "it is an export: give the checkpoint directory of its trainer"),
    ],
)
def test_a_directory_without_a_chain_is_an_error_that_says_what_to_give(
    tmp_path: Path, run: Run, command: str, name: str, problem: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "above" / "run" / ".incremental_checkpoint").mkdir(parents=True)
    (tmp_path / "export" / "1").mkdir(parents=True)
    (tmp_path / "export" / "1" / "saved_model.pb").touch()

    done = run(command, tmp_path / name)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("hotdelta: ")
    assert problem in done.err


def test_a_reader_that_goes_away_is_no_error(forked: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = started("log", forked, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_that_takes_nothing_is_named(forked: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = started("log", forked, stdout=full)
    assert (done.returncode, done.stderr) == (1, "hotdelta: No space left on device\n")


@pytest.mark.parametrize("module", ["hotdelta", "exporter", "server"])
def test_each_command_is_a_module_that_python_runs(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {module} ")


def test_a_command_that_needs_neither_does_not_import_tensorflow_nor_rich(forked: Path) -> None:
    program = (
        "import sys; from hotdelta.cli import main; code = main(sys.argv[1:]); "
        "print(code, *{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    for command in (*of_directories(), "doctor", "diff 1.1", "key users 1"):
        name, *more = command.split()
        done = subprocess.run(
            [sys.executable, "-c", program, name, str(forked), *more],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        code, *modules = done.stderr.split()
        assert code == "0"
        assert {"tensorflow", "keras", "rich", "httpx"}.isdisjoint(modules), command


def test_help_needs_not_even_numpy() -> None:
    program = (
        "import sys; from hotdelta.cli.parser import make_parser; make_parser(); "
        "assert 'numpy' not in sys.modules; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], timeout=LIMIT_SECONDS, check=True)


def test_every_command_can_be_run() -> None:
    """Each name that the parser knows leads to a module with a `run`."""
    from importlib import import_module

    from hotdelta.cli import _MODULES

    (commands,) = [action for action in make_parser()._actions if action.dest == "command"]
    assert set(commands.choices or ()) == set(_MODULES)
    for module in _MODULES.values():
        assert callable(import_module(module).run)
