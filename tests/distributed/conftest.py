from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes
