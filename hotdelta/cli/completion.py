"""`hotdelta completion SHELL`: the script that completes the command, made of the parser by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from hotdelta.cli.parser import make_parser

_FILES = {"DIR": shtab.DIRECTORY, "DIR|URL": shtab.DIRECTORY, "FILE": shtab.FILE}


def run(options: argparse.Namespace) -> int:
    parser = make_parser()
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar in _FILES:
            # What shtab looks for; argparse knows nothing of it.
            action.complete = _FILES[action.metavar]  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of it, and of its commands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of what was added
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)
        yield action
