"""How the chain of a TF2 parameter-server cluster was written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from hotdelta.chain import Scanner
from tests.distributed.cluster import Cluster
from tests.golden.golden_chains import digests_of_arrays, write_expected


def write_tf2_servers(directory: Path) -> None:
    """Two parameter servers write their shards; what is known is how the variables were at the end."""
    run_dir = directory / "run"
    with tempfile.TemporaryDirectory() as scratch, Cluster(Path(scratch)) as cluster:
        cluster.start_servers(ps=2, workers=2)
        training = cluster.coordinate(run_dir)
        training.wait_for("step", 3)
        with np.load(training.stop()) as values:
            state = digests_of_arrays(sorted(values.items()))
    newest = Scanner(run_dir).scan().manifests[-1]
    write_expected(directory, {str(newest.position): state}, step=newest.step)
