"""docs/command-line.md has a section for each command of `hotdelta`, with its arguments and each of its options."""

from __future__ import annotations

import argparse
import re

import pytest

from hotdelta.cli.parser import make_parser
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "command-line.md").read_text()
SECTIONS = {
    found[1]: found[2]
    for found in re.finditer(r"^## (hotdelta [^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}


def commands() -> dict[str, argparse.ArgumentParser]:
    for action in make_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("no commands")


def usage_of(command: argparse.ArgumentParser) -> str:
    """Its name and what follows without a dash, as a usage line writes it."""
    shapes = {"?": "[{}]", "+": "{}..."}
    given = [
        shapes.get(str(action.nargs), "{}").format(action.metavar)
        for action in command._actions
        if not action.option_strings
    ]
    return " ".join([command.prog, *given])


def test_no_command_is_missing_and_none_is_there_that_is_gone() -> None:
    assert sorted(SECTIONS) == sorted(usage_of(command) for command in commands().values())


@pytest.mark.parametrize("name", commands())
def test_each_option_stands_in_its_section(name: str) -> None:
    command = commands()[name]
    known = {option for option in command._option_string_actions if option not in ("-h", "--help")}
    cells = re.findall(r"^\| (`-[^|]*) \|", SECTIONS[usage_of(command)], re.MULTILINE)

    assert set(re.findall(r"`(--?[a-z][\w-]*)", "".join(cells))) == known


def test_exit_codes_are_those_of_the_command() -> None:
    from hotdelta import cli

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert listed == {cli.EXIT_OK, cli.EXIT_FAILED, cli.EXIT_USAGE, cli.EXIT_INTERRUPTED}
