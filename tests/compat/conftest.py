from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forks import Forks
from tests.reserved_ports import SHARING


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes in graph mode; see graph_program."""
    environment = {**SHARING, "TF_CPP_MIN_LOG_LEVEL": "1"}
    with Forks("tests.compat.graph_program", tmp_path_factory.mktemp("forks"), environment) as forks:
        yield forks
