from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import export_saved_model
from tests.exporter.bundles import TwoTables, delta_tensors, full_tensors, write_bundle
from tests.exporter.runtimes import EagerRuntime, Runtime, SessionRuntime
from tests.exporter.trained_run import Trained, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="session")
def trained_export(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newest state of that run, as an export that can take deltas."""
    return export_saved_model(
        trained.run_dir, tmp_path_factory.mktemp("trained_export"), save_incr_model=True
    )


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of TwoTables that can take deltas."""
    module = TwoTables()
    return export_saved_model(
        module,
        tmp_path_factory.mktemp("export"),
        save_incr_model=True,
        signatures={"serving_default": module.score},
        tables=["users", "items"],
    )


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_bundle(tmp_path_factory.mktemp("full") / "model.ckpt-100", full_tensors())


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_bundle(tmp_path_factory.mktemp("delta") / "incremental_model.ckpt-102", delta_tensors())


@pytest.fixture(scope="session", params=["eager", "session"])
def loaded(request: pytest.FixtureRequest, export: Path) -> Iterator[Runtime]:
    if request.param == "eager":
        yield EagerRuntime(export)
    else:
        runtime = SessionRuntime(export)
        yield runtime
        runtime.graph.__exit__(None, None, None)


@pytest.fixture
def runtime(loaded: Runtime, full: str) -> Runtime:
    """The export as it is after restore_full."""
    loaded.call("restore_full", prefix=[full])
    return loaded
