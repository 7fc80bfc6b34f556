"""A parameter server that does not answer, and is not dead either."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.train.save.server_parts import RowsToWrite, ServerPart, write_parts
from hotdelta.train.servers import patience as server_patience
from tests.distributed.chains import assert_chain_holds, committed
from tests.distributed.cluster import Cluster, Reporter
from tests.waiting import LIMIT_SECONDS, wait_until

SLOW, OVER = "still waiting for the cluster", "the cluster answers again"


def test_write_that_hangs_is_told_with_its_server_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_patience, "SLOW_SECONDS", 0.05)
    goes_on, server = threading.Event(), tf.constant(0.0).device

    def read() -> tf.Tensor:
        goes_on.wait()
        return tf.constant(np.ones((2, 3), np.float32))

    rows = RowsToWrite(server, names.ROLE_SERVING, "table", 0, 2, 24, read)
    writing = threading.Thread(target=write_parts, args=([ServerPart(tmp_path, "part", (rows,))],))
    with caplog.at_level(logging.INFO, "hotdelta"):
        writing.start()
        wait_until(lambda: caplog.text.count(SLOW) >= 2, "two warnings")
        goes_on.set()
        writing.join(LIMIT_SECONDS)
    assert "servers=/job:localhost/task:0 silent=unknown" in caplog.text
    assert caplog.text.count(OVER) == 1
    assert (tmp_path / ".tmp-part.index").exists()


def test_stopped_server_is_named_and_nothing_is_lost_when_it_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start_servers(ps=2, workers=1)
    coordinator = cluster.coordinate(tmp_path, slow_seconds=0.5)
    coordinator.wait_for("step", 4)
    wait_until(lambda: is_named_when_stopped(cluster, coordinator), "a warning that names it")
    saved = len(committed(tmp_path))
    os.kill(cluster.pid("ps", 1), signal.SIGCONT)
    wait_until(lambda: len(committed(tmp_path)) > saved, "a commit")
    trained = coordinator.stop()
    assert_chain_holds(tmp_path, trained)


def is_named_when_stopped(cluster: Cluster, coordinator: Reporter) -> bool:
    """It goes on when nobody said so for a while: then a step of training waits for it, and only TensorFlow knows."""
    os.kill(cluster.pid("ps", 1), signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        # A busy machine may have been slow before, and said so of others.
        if is_named(coordinator.log()):
            return True
        time.sleep(0.05)
    os.kill(cluster.pid("ps", 1), signal.SIGCONT)
    time.sleep(0.3)
    return False


def is_named(log: str) -> bool:
    named = 'servers=/job:ps/task:1 silent="/job:ps/task:1 (it says nothing)"'
    return any(SLOW in line and named in line for line in log.splitlines())
