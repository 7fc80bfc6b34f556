"""Stops a real process at its system calls, whatever thread or library makes them.

So a test can kill a process between any two calls, let any call fail, or change the directory at that very moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.chaos.seccomp import FORMS, Form, number_of

STOP_SECONDS = 30.0


_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_REQUEST, _RESPONSE = struct.Struct("QIIiIQ6Q"), struct.Struct("QqiI")
_LONGEST_PATH = 4096
_IN_WORKING_DIRECTORY = -100


@dataclass(frozen=True)
class Call:
    """A call that is about to happen. `path` is what it is about: a file's final name in a rename."""

    name: str
    path: Path
    thread: int

    def kill(self) -> int:
        """kill -9 of the whole process, now."""
        os.kill(self.thread, signal.SIGKILL)
        return 0


Action = Callable[[Call], int]
"""What to do at a call; returns the number of the error that the process shall see, or 0 to let the call happen.

Below 0 it does not happen either, but the process is told that it did, and sees the number without its sign.
"""


class SystemCalls:
    """Answers for one process: counts its calls below a directory since `arm`, and acts once, before one of them.

    With `arm_all` it acts before every one. Calls about the files in `passed` are not counted. Any thread may call, and
    waits while it acts: who is told that it has acted knows that the action is over.
    """

    def __init__(self, socket_path: Path, within: Path) -> None:
        self.passed: frozenset[Path] = frozenset()
        self._within = within
        self._names = {number_of(name): name for name in FORMS}
        self._guard = threading.Lock()
        self._seen: list[Call] = []
        self._at: int | None = None
        self._action: Action | None = None
        self._acted_on: Call | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(socket_path))
        self._server.listen(1)
        self._stopping_end, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="system-calls", daemon=True)
        self._thread.start()

    def arm(self, number: int, action: Action) -> None:
        """Count from one again, and act before call `number`."""
        with self._guard:
            self._seen, self._at, self._action, self._acted_on = [], number, action, None

    def arm_all(self, action: Action) -> None:
        with self._guard:
            self._seen, self._at, self._action, self._acted_on = [], None, action, None

    def disarm(self) -> list[Call]:
        """The calls since it was armed."""
        with self._guard:
            self._action = None
            return self._seen

    @property
    def acted_on(self) -> Call | None:
        with self._guard:
            return self._acted_on

    def close(self) -> None:
        os.write(self._stop, b"x")
        self._thread.join(STOP_SECONDS)
        for descriptor in (self._stop, self._stopping_end):
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        with self._server:
            poll = select.poll()
            poll.register(self._server, select.POLLIN)
            poll.register(self._stopping_end, select.POLLIN)
            if self._stopping_end in dict(poll.poll()):
                return
            connection, _ = self._server.accept()
        with connection:
            listener = socket.recv_fds(connection, 1, 1)[1][0]
        try:
            self._answer_until_the_end(listener)
        finally:
            os.close(listener)

    def _answer_until_the_end(self, listener: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._stopping_end, select.POLLIN)
        while True:
            for descriptor, events in poll.poll():
                if descriptor == self._stopping_end or events & select.POLLHUP:
                    return
                # The one who asked may have been killed meanwhile.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    self._answer(listener)

    def _answer(self, listener: int) -> None:
        buffer = bytearray(_REQUEST.size)
        fcntl.ioctl(listener, _RECEIVE, buffer)
        key, thread, _, number, _, _, *arguments = _REQUEST.unpack(buffer)
        name = self._names[number]
        path = Path(_path_of(FORMS[name], thread, arguments))
        is_counted = path.is_relative_to(self._within) and path not in self.passed
        verdict = self._consider(Call(name, path, thread)) if is_counted else 0
        error, result = max(0, verdict), max(0, -verdict)
        response = _RESPONSE.pack(key, result, -error, 0 if verdict else _CONTINUE)
        fcntl.ioctl(listener, _SEND, bytearray(response))

    def _consider(self, call: Call) -> int:
        with self._guard:
            self._seen.append(call)
            if self._action is None or self._at not in (None, len(self._seen)):
                return 0
            self._acted_on = call
            return self._action(call)


def _path_of(form: Form, thread: int, arguments: list[int]) -> str:
    if form.descriptor is not None:
        return _descriptor_path(thread, arguments[form.descriptor])
    assert form.path is not None
    path = _read_text(thread, arguments[form.path])
    if path.startswith("/") or form.directory is None:
        return path
    directory = ctypes.c_int(arguments[form.directory]).value
    if directory == _IN_WORKING_DIRECTORY:
        return path
    return f"{_descriptor_path(thread, directory)}/{path}"


def _descriptor_path(thread: int, descriptor: int) -> str:
    try:
        return str(Path(f"/proc/{thread}/fd/{descriptor}").readlink())
    except OSError:
        return ""


def _read_text(thread: int, address: int) -> str:
    """A string in the memory of the process; it may lie at the end of what is mapped."""
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        content = memory.read(_LONGEST_PATH)
    return os.fsdecode(content.partition(b"\0")[0])
