from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.cluster_of_processes import Cluster, cluster_in
from tests.forks import Forks
from tests.reserved_ports import SHARING


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes in graph mode; see graph_program."""
    environment = {**SHARING, "TF_CPP_MIN_LOG_LEVEL": "1"}
    with Forks("tests.compat.graph_program", tmp_path_factory.mktemp("forks"), environment) as forks:
        yield forks


@pytest.fixture
def cluster(tmp_path: Path, forks: Forks) -> Iterator[Cluster]:
    with cluster_in(tmp_path, forks) as cluster:
        yield cluster
