"""The forks of tests.forks end, whatever their state."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.forks import Fork

# The kernel gives none so high: what has ended is not somebody else meanwhile.
NO_PROCESS = 2**22 + 1


def test_fork_whose_end_is_noted_late_counts_as_killed(tmp_path: Path) -> None:
    fork = Fork(NO_PROCESS, tmp_path / "end")
    # Under its name it is whole, as where forks are started.
    (tmp_path / "new").write_text("0")
    noting = threading.Timer(0.05, (tmp_path / "new").rename, [tmp_path / "end"])
    noting.start()
    fork.kill()
    noting.join()
    assert fork.poll() == 0
