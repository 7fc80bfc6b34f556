"""A program: runs another one in its place, whose system calls wait for a test, or that has fewer rights, or a clock
that is wrong.

Usage: launched.py [--ask SOCKET CALL,CALL...] [--obey-permissions] [--clock FILE] MODULE ARGUMENT...
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import runpy
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.seccomp import ask_before

_DROP_FROM_BOUNDING_SET = 24
_IGNORE_PERMISSIONS, _READ_EVERYTHING = 1, 2


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ask", nargs=2, metavar=("SOCKET", "CALLS"))
    parser.add_argument("--clock", type=Path)
    parser.add_argument("--obey-permissions", action="store_true")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.obey_permissions:
        obey_permissions()
        _start_anew([word for word in arguments if word != "--obey-permissions"])
    if options.clock is not None:
        if "hotdelta" in sys.modules:
            # What is imported knows the right clock.
            _start_anew(arguments)
        time.time = shifted_clock(options.clock, time.time)
    if options.ask is not None:
        # Before the calls are counted: its import alone makes ten thousand of them.
        importlib.import_module("tensorflow")
        hand_over(Path(options.ask[0]), options.ask[1].split(","))
    sys.argv = [options.module, *options.arguments]
    runpy.run_module(options.module, run_name="__main__", alter_sys=True)


def _start_anew(arguments: Sequence[str]) -> None:
    os.execv(sys.executable, [sys.executable, "-u", "-m", "tests.chaos.launched", *arguments])  # noqa: S606


def hand_over(socket_path: Path, calls: Sequence[str]) -> None:
    """Let whoever listens at the socket answer for the calls of this process."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path))
        listener = ask_before(calls)
        socket.send_fds(connection, [b"x"], [listener])
        os.close(listener)


def obey_permissions() -> None:
    """Whoever runs the tests: what is executed next may not read what its owner has forbidden himself to read."""
    libc = ctypes.CDLL(None)
    for right in (_IGNORE_PERMISSIONS, _READ_EVERYTHING):
        libc.prctl(_DROP_FROM_BOUNDING_SET, right, 0, 0, 0)


def shifted_clock(file: Path, clock: Callable[[], float]) -> Callable[[], float]:
    """A clock of the day that somebody sets: the file says by how many seconds it is wrong now."""

    def read() -> float:
        return clock() + float(file.read_text() or 0)

    return read


if __name__ == "__main__":
    main(sys.argv[1:])
