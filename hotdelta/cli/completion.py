"""`hotdelta completion SHELL`: the script that completes the command, made of the parser by shtab."""

from __future__ import annotations

import argparse
from typing import Any

import shtab

from hotdelta.cli.parser import make_parser

_FILES = {"DIR": shtab.DIRECTORY, "DIR|URL": shtab.DIRECTORY, "FILE": shtab.FILE}


class _ParserWithFiles(argparse.ArgumentParser):
    """Notes which arguments are files and directories, where shtab looks for it."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        if isinstance(action.metavar, str) and action.metavar in _FILES:
            action.complete = _FILES[action.metavar]  # type: ignore[attr-defined]
        return action


def run(options: argparse.Namespace) -> int:
    print(shtab.complete(make_parser(_ParserWithFiles), options.shell))
    return 0
