from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keras.trainer_processes import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("trainers")) as process:
        yield process
