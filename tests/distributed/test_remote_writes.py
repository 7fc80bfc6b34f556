"""Variables that parameter servers hold are written when training resumes: a server that hangs then is named."""

from __future__ import annotations

import os
import signal

import pytest

from tests.distributed.cluster import Cluster
from tests.distributed.remote_write_program import VALUES
from tests.waiting import wait_until

SILENT = 'servers=/job:ps/task:0 silent="/job:ps/task:0 (it says nothing)"'


@pytest.mark.parametrize("is_sharded", [False, True], ids=["a dense variable", "a sharded variable"])
def test_write_to_a_server_that_hangs_names_it_and_goes_on_with_it(
    is_sharded: bool, cluster: Cluster
) -> None:
    cluster.start_servers(ps=1, workers=1)
    writer = cluster.write_remotely(is_sharded=is_sharded, slow_seconds=0.2)
    writer.wait_for("connected")
    # A busy machine may have been slow before, and said so of a server that answers.
    wait_until(lambda: SILENT in writer.log(), "a warning that names the server")
    assert writer.said("written") == []
    os.kill(cluster.pid("ps", 0), signal.SIGCONT)
    assert writer.wait_for("written") == VALUES.tolist()
