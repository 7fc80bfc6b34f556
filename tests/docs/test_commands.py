"""Every command line on the pages is one that the commands take, and every option that is named exists."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import exporter.arguments
import server.cli
from hotdelta.cli.parser import make_parser as make_hotdelta_parser
from tests.docs.pages import PAGES, blocks_of

PARSERS = {
    "server": server.cli._parser(),
    "exporter": exporter.arguments.make_parser(),
    "hotdelta": make_hotdelta_parser(),
}
COMMAND_LINES = [
    pytest.param(line.removeprefix("$ "), id=f"{block}: {line}")
    for page in PAGES
    for block in blocks_of(page)
    if not block.info
    for line in block.text.splitlines()
    if line.removeprefix("$ ").split(" ")[0] in PARSERS
]


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line_is_understood(line: str) -> None:
    command, *arguments = shlex.split(line)

    PARSERS[command].parse_args(arguments)


# Benchmarks have options of their own, and are run where their figures are told.
PROGRAMS_OF_OTHERS = re.compile(r"(?:\baws |\bkubectl |python -m benchmarks\.)[^`\n]*")


def parsers_within(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """It, and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from parsers_within(command)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for found in parsers_within(parser) for option in found._option_string_actions}


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_options_are_written_out(parser: argparse.ArgumentParser) -> None:
    """Otherwise an option that a later release adds changes what a script means."""
    assert [found.prog for found in parsers_within(parser) if found.allow_abbrev] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    known = set[str]().union(*map(options_of, PARSERS.values()))
    text = PROGRAMS_OF_OTHERS.sub("", page.read_text())

    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= known
