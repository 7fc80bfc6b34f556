"""The forks of tests.forks end, whatever their state."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.forks import Fork


def test_fork_whose_end_is_noted_late_counts_as_killed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    fork = Fork(ended.pid, tmp_path / "end")
    noting = threading.Timer(0.05, lambda: (tmp_path / "end").write_text("0"))
    noting.start()
    fork.kill()
    noting.join()
    assert fork.poll() == 0
