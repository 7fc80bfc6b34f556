"""TensorFlow imported without its greeting, for commands whose standard error is a log.

While it is imported TensorFlow writes lines about oneDNN, whatever TF_CPP_MIN_LOG_LEVEL says: its log is not set up
yet. So standard error passes, for that time, through a process that leaves them out. A process, because what
TensorFlow says before it aborts must get through; its program is this file.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, cast

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS_HIDDEN = "3"
_PATIENCE_SECONDS = 30.0
_MARK = b"\0all of it\n"
_GREETINGS = (b"I0000 ", b"WARNING: All log messages before absl::InitializeLog() ")


@contextmanager
def quiet_import() -> Iterator[None]:
    """For the block that imports TensorFlow. Whoever has set TF_CPP_MIN_LOG_LEVEL to 0 sees everything."""
    is_greeting_hidden = os.environ.setdefault(_LEVEL, _ERRORS_HIDDEN) in ("1", "2", "3")
    if not is_greeting_hidden or sys.stderr is None:
        yield
        return
    with _stderr_without_greetings():
        yield


@contextmanager
def _stderr_without_greetings() -> Iterator[None]:
    stderr = os.dup(2)
    # Isolated, it is there in 20 ms; in a session of its own Ctrl-C does not end it before us.
    program = [sys.executable, "-I", "-S", __file__]
    try:
        sieve = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
        try:
            with cast(IO[bytes], sieve.stdin) as into_sieve, cast(IO[bytes], sieve.stdout) as answer:
                os.dup2(into_sieve.fileno(), 2)
                try:
                    yield
                finally:
                    os.dup2(stderr, 2)
                    _wait_for_all_of_it(into_sieve, answer)
        finally:
            # It ends with the last process that was started meanwhile and still writes to it.
            threading.Thread(target=sieve.wait, name="sieve", daemon=True).start()
    finally:
        os.close(stderr)


def _wait_for_all_of_it(into_sieve: IO[bytes], answer: IO[bytes]) -> None:
    """However slow it is, but not when nobody reads: no later line may overtake those that went through it."""
    if _is_ready(into_sieve, select.POLLOUT):
        with suppress(BrokenPipeError):
            os.write(into_sieve.fileno(), _MARK)
        _is_ready(answer, select.POLLIN)


def _is_ready(pipe: IO[bytes], event: int) -> bool:
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(_PATIENCE_SECONDS * 1000))


def _sieve() -> None:
    """Its standard output only tells, by its end, that all before the mark was passed on."""
    for line in sys.stdin.buffer:
        said = line.removesuffix(_MARK)
        if not said.startswith(_GREETINGS):
            sys.stderr.buffer.write(said)
            sys.stderr.buffer.flush()
        if said != line:
            os.close(1)


if __name__ == "__main__":
    _sieve()
