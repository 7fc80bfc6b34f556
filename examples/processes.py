"""Child processes that never outlive their parent's `with` block, nor their parent when it is killed.

Their last words are kept for when they crash.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_STOP_SECONDS = 10.0
_KEPT_LINES = 15


class ChildFailedError(Exception):
    """A child ended that should have gone on, or ended with an error."""


class Child:
    """One Python module as a process. Every line it prints goes to `on_line`, in a thread of its own.

    It gets a session of its own, so that Ctrl-C reaches only the parent, which then stops its children in order.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        temporary: Path,
        on_line: Callable[[str], None],
    ) -> None:
        self.name = name
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "examples.with_parent", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            # TensorFlow leaves files there when it is killed.
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def check(self) -> None:
        """Raises ChildFailedError when it has ended and should not have."""
        if self.has_ended:
            self._fail()

    def check_not_failed(self) -> bool:
        """Whether it has done its work. Raises ChildFailedError when it could not."""
        if self.has_ended and self._process.returncode != 0:
            self._fail()
        return self.has_ended

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not help."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_SECONDS)

    def _fail(self) -> None:
        self._reader.join(1)
        said = "\n".join(f"    {line}" for line in self._last_lines) or "    (nothing)"
        raise ChildFailedError(
            f"the {self.name} ended with exit code {self._process.returncode}; it last said:\n{said}"
        )

    def _read(self) -> None:
        for text in self._process.stdout or ():
            line = text.rstrip()
            if line:
                self._last_lines.append(line)
                self._on_line(line)


class Children:
    """Starts children, and stops all of them, the last one first, when its block is left in any way."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self._children: list[Child] = []

    def start(
        self, name: str, module: str, arguments: Sequence[str], on_line: Callable[[str], None]
    ) -> Child:
        child = Child(name, module, arguments, temporary=self._temporary, on_line=on_line)
        self._children.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.stop()
