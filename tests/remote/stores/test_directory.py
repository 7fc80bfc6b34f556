"""The store in a directory keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from tests.remote.stores.checks_of_a_store import StoreChecks


class TestDirectoryStore(StoreChecks):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(f"file://{tmp_path / 'a store'}")
