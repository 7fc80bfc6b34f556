"""An application in front of a fake model, for tests of what its routes answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.application import application
from tests.server.fake_model import FakeModel

Serve = Callable[..., TestClient]


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def serve(model: FakeModel) -> Iterator[Serve]:
    """Starts one, of another model if it is given one, with these settings."""
    clients = []

    def start(served: FakeModel = model, /, **options: Any) -> TestClient:
        client = TestClient(application(served, **options), raise_server_exceptions=False)
        clients.append(client.__enter__())
        return clients[-1]

    yield start
    for client in clients:
        client.__exit__(None, None, None)
