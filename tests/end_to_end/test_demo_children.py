"""What the demo starts ends with it, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import LIMIT_SECONDS, wait_until

PARENT = """
import sys, threading
from pathlib import Path
from examples.processes import Children

with Children(temporary=Path(sys.argv[1])) as children:
    children.start("child", "http.server", ["--bind", "127.0.0.1", "0"], lambda line: print(line, flush=True))
    threading.Event().wait()
"""


def has_ended(process: psutil.Process) -> bool:
    """A zombie has: who adopted it may take its time."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_kill_9_of_the_parent_ends_its_children(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        # It has set itself up, and goes on for ever.
        assert parent.stdout.readline().startswith("Serving HTTP")
        (child,) = psutil.Process(parent.pid).children()
        parent.kill()
        parent.wait(LIMIT_SECONDS)
        try:
            wait_until(lambda: has_ended(child), "the child is gone")
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def test_a_parent_that_is_gone_before_its_child_looks_is_noticed() -> None:
    command = [sys.executable, "-m", "examples.with_parent", "http.server", "--bind", "127.0.0.1", "0"]

    orphan = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECONDS, check=False
    )

    assert orphan.returncode == -signal.SIGTERM


def test_a_module_is_run_as_by_python_m_with_its_exit_code() -> None:
    command = [sys.executable, "-m", "examples.with_parent", "hotdelta.cli", "chain", "/nowhere"]

    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        code = child.wait(LIMIT_SECONDS)
        said = child.stderr.read() if child.stderr else ""

    assert code == 2
    assert said.startswith("hotdelta: /nowhere does not exist")
