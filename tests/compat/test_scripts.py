"""A script of TensorFlow 1 as it stands, with only its import line changed, and shorter times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.chain import Kind
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.I6

SCRIPT = Path(__file__).parent / "scripts" / "tolerance.py.txt"
# Not the time between fulls: of a run that takes long the first delta would go with the first full.
SHORTER = {
    "import tensorflow as tf": "import hotdelta.compat.v1 as tf",
    "save_incremental_checkpoint_secs=20": "save_incremental_checkpoint_secs=1",
    "range(1000)": "range(100)",
    "sleep(1)": "sleep(0.05)",
}
RUN_DIR = "test/test4tolerance/ckpt"


def start(directory: Path) -> subprocess.Popen[str]:
    text = SCRIPT.read_text()
    for old, new in SHORTER.items():
        assert old in text
        text = text.replace(old, new)
    script = directory / "tolerance.py"
    script.write_text(text)
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, script],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "2"},
    )


def test_the_script_goes_on_from_its_last_delta_after_kill_9(tmp_path: Path) -> None:
    run_dir = tmp_path / RUN_DIR
    first = start(tmp_path)

    def has_saved() -> bool:
        assert first.poll() is None, first.communicate()[0]
        return len(manifests(run_dir, Kind.DELTA)) >= 2

    wait_until(has_saved, "two deltas", poll_seconds=0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    tip = manifests(run_dir)[-1]
    assert tip.kind is Kind.DELTA

    second = start(tmp_path)
    output = second.communicate(timeout=LIMIT_SECONDS)[0]
    assert second.returncode == 0, output
    steps = [int(line.split("(")[1].split(")")[0]) for line in output.splitlines() if line.startswith("[")]
    assert steps == list(range(tip.step + 1, tip.step + 101))
    child = next(link for link in manifests(run_dir, Kind.DELTA) if link.position.run == 2)
    assert child.parent == tip.node
    assert child.tables["a"].part_rows == (8, 8, 7, 7)
    assert child.tables["a"].strategy == "mod"
    oldest = manifests(run_dir, Kind.FULL)[0]
    replayed, last = state_of(run_dir, oldest, links_after(run_dir, oldest)), newest_state(run_dir)
    assert {key: value.tobytes() for key, value in replayed.items()} == {
        key: value.tobytes() for key, value in last.items()
    }
    assert int(last["global_step"]) == tip.step + 100
