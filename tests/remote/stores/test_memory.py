"""The store in memory keeps the contract."""

from __future__ import annotations

import pytest

from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from tests.remote.stores.checks_of_a_store import StoreChecks


class TestMemoryStore(StoreChecks):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()
