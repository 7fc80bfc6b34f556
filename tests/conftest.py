"""What holds for all tests: no property of ours is a matter of speed, and which graphs are optimized; and a key."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from tests.forks import SELDOM, search_less_for_garbage
from tests.graph_optimizer import optimize_graphs
from tests.signing_keys import KEY

# Before the tests import TensorFlow: that is when most of the searching is done.
gc.set_threshold(*SELDOM)

# As in the profile that hypothesis has for CI: an example that a busy machine runs or draws slowly is no failure.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


def pytest_collection_finish() -> None:
    """What is imported stays, and is most of what there is: no export need search it for garbage."""
    search_less_for_garbage()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Only tests that are marked so have their graphs optimized; see tests.graph_optimizer."""
    optimize_graphs(item.get_closest_marker("optimized") is not None)
    return (yield)


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    # As an editor leaves it: the end of the line is no part of the key.
    path.write_bytes(KEY + b"\n")
    return path


@pytest.fixture
def has_key(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this test starts has the key."""
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key_file))
