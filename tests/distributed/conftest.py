from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


@pytest.fixture(autouse=True)
def end_of_training(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test leaves training would train on beside all that follow."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").kill_all()
