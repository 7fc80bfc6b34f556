"""Log lines for readers that do not read, and for disks that are full."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from hotdelta.logs import JsonFormatter, TextFormatter
from server import log_writer
from server.log_writer import LogWriter
from tests.waiting import wait_until

ROOM = 8

Pipe = tuple[int, int]
Start = Callable[..., logging.Logger]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    yield ends
    for end in ends:
        os.close(end)


def fill(pipe: Pipe) -> None:
    """With one line."""
    os.write(pipe[1], b"." * 4095 + b"\n")


@pytest.fixture
def start() -> Iterator[Start]:
    logger, writers = logging.getLogger("tests.log_writer"), []
    logger.setLevel(logging.INFO)

    def make(descriptor: int, formatter: type[logging.Formatter] = TextFormatter) -> logging.Logger:
        writers.append(LogWriter(descriptor, max_lines=ROOM))
        writers[-1].setFormatter(formatter())
        writers[-1].start()
        logger.addHandler(writers[-1])
        return logger

    yield make
    for writer in writers:
        logger.removeHandler(writer)
        writer.close()


def read_until(pipe: Pipe, word: str) -> list[str]:
    read = b""

    def is_there() -> bool:
        nonlocal read
        read += os.read(pipe[0], 65536)
        return word.encode() in read and read.endswith(b"\n")

    wait_until(is_there, word)
    return read.decode().splitlines()


def test_a_log_that_nobody_reads_holds_nobody_up_and_says_later_what_was_lost(
    pipe: Pipe, start: Start
) -> None:
    fill(pipe)
    logger = start(pipe[1])

    for number in range(100):
        logger.info("line %d", number)

    _, *lines = read_until(pipe, "were lost")
    numbers = [int(line.split()[-1]) for line in lines[:-1]]
    # One more when the thread has taken the first to write it.
    assert ROOM <= len(numbers) <= ROOM + 1
    assert numbers == sorted(numbers)
    assert numbers[:ROOM] == list(range(ROOM))
    assert lines[-1].endswith(
        f"WARNING log lines were lost: they could not be written in time count={100 - len(numbers)}"
    )
    logger.info("line 100")
    (line,) = read_until(pipe, "line 100")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO    line 100", line)


def test_what_was_lost_and_exceptions_are_json_in_a_log_that_is_json(pipe: Pipe, start: Start) -> None:
    fill(pipe)
    logger = start(pipe[1], JsonFormatter)

    for number in range(20):
        try:
            raise ValueError(number)
        except ValueError:
            logger.exception("line")

    *records, lost = map(json.loads, read_until(pipe, "were lost")[1:])
    for number, record in enumerate(records[:ROOM]):
        assert record["exception"].endswith(f"ValueError: {number}")
    assert (lost["level"], lost["count"]) == ("WARNING", 20 - len(records))


def test_what_waits_is_written_at_the_end_but_not_waited_for_when_nobody_reads(
    pipe: Pipe, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_FLUSH_SECONDS", 60)
    logger = start(pipe[1])
    logger.info("first")
    (writer,) = logger.handlers
    writer.flush()
    assert os.read(pipe[0], 4096).endswith(b"first\n")

    fill(pipe)
    logger.info("second")
    monkeypatch.setattr(log_writer, "_FLUSH_SECONDS", 0.05)
    writer.flush()
    assert read_until(pipe, "second")[-1].endswith("second")


def test_lines_that_cannot_be_written_are_counted_too(
    pipe: Pipe, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_FLUSH_SECONDS", 60)
    full = os.open("/dev/full", os.O_WRONLY)
    logger = start(full)
    (writer,) = logger.handlers
    logger.info("nowhere")
    writer.flush()
    os.dup2(pipe[1], full)
    logger.info("here")

    assert [line.split(" ", 3)[3].strip() for line in read_until(pipe, "lost")] == [
        "here",
        "log lines were lost: they could not be written in time count=1",
    ]
    os.close(full)


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe: Pipe, start: Start) -> None:
    os.set_blocking(pipe[1], False)
    fill(pipe)
    start(pipe[1]).info("x" * 10_000)

    assert len(read_until(pipe, "x\n")[-1]) > 10_000


LOGS_AND_ENDS = """
import logging, os, sys, server.cli, server.log_writer
if not {is_full}:
    server.log_writer._FLUSH_SECONDS = 60
else:
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(2, True)
server.log_writer.log_to_stderr("text")
for number in range(1000):
    server.cli.logger.info("line %d", number)
server.cli.logger.info("stopped")
{end}
"""


@pytest.mark.parametrize(
    "end, is_full",
    [("sys.exit(0)", False), ("server.cli._leave_at_once()", False), ("server.cli._leave_at_once()", True)],
)
def test_a_process_ends_with_its_last_line_written_or_without_when_nobody_reads(
    end: str, is_full: bool
) -> None:
    program = [sys.executable, "-c", LOGS_AND_ENDS.format(is_full=is_full, end=end)]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        if is_full:
            assert process.wait(60) == 0
        said = process.stderr.read()
        assert process.wait(60) == 0

    assert ("stopped" in said.splitlines()[-1]) == (not is_full)
