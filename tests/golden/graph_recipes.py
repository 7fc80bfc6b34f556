"""How the chains of TensorFlow 1 sessions were written. Imported only where graph mode is on. The graph must stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hotdelta.compat.v1 as tf
from hotdelta.compat.v1.chain import open_chains
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.local_cluster import LocalCluster, fresh_cluster
from tests.compat.graph_mode.small_graphs import Build, Model, build_model, live_state, monitored, new_graph
from tests.golden.golden_chains import Digests, digests_of_arrays, write_expected

PARTS = Build(parts=4)


@contextmanager
def session_on(run_dir: Path, cluster: LocalCluster | None = None) -> Iterator[tuple[Any, Model]]:
    with new_graph():
        with cluster.device() if cluster else nullcontext():
            model = build_model(PARTS, tf.train.AdagradOptimizer(0.1))
        master = cluster.target if cluster else ""
        with monitored(run_dir, master=master, save_checkpoint_steps=3) as session:
            yield session, model


def write_tf1(directory: Path) -> None:
    """Two starts of a session with a partitioned table."""
    _write(directory, None)


def write_tf1_servers(directory: Path) -> None:
    """The same on two parameter servers, which write their rows themselves."""
    _write(directory, fresh_cluster())


def _write(directory: Path, cluster: LocalCluster | None) -> None:
    states: dict[str, Digests] = {}
    for batches in ([[1, 2], [2, 3], [29], [4, 4, 5]], [[1], [17, 18]]):
        with session_on(directory / "run", cluster) as (session, model):
            for ids in batches:
                session.run(model.train, {model.ids: ids})
                for chain in list(open_chains._open_chains.values()):
                    chain.wait()
                newest = manifests(directory / "run")[-1]
                if newest.step == session.run(model.step):
                    states[str(newest.position)] = session_digests(session)
            last = session_digests(session)
        newest = manifests(directory / "run")[-1]
        states[str(newest.position)] = last
        write_expected(directory, states, step=newest.step)


def session_digests(session: Any) -> Digests:
    return digests_of_arrays(live_state(session._tf_sess()).items())
