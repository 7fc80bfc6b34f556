"""What holds for all tests: no property of ours is a matter of speed, which graphs are optimized, a key, a store."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from tests.forks import SELDOM, search_less_for_garbage
from tests.graph_optimizer import optimize_graphs
from tests.remote.servers import S3Server, credentials_in_environment, running_rclone, running_seaweedfs
from tests.signing_keys import KEY

GRAPH_MODE = Path(__file__).parent / "compat" / "graph_mode"

# Before the tests import TensorFlow: that is when most of the searching is done.
gc.set_threshold(*SELDOM)

# Who is started in the background of a script is deaf to Ctrl-C, and so is all that he starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# As in the profile that hypothesis has for CI: an example that a busy machine runs or draws slowly is no failure.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported stays, and is most of what there is: no export need search it for garbage."""
    if "hotdelta.compat.v1" in sys.modules and any(
        GRAPH_MODE not in item.path.parents for item in session.items
    ):
        raise pytest.UsageError(
            "a module of tests imports hotdelta.compat.v1, which is graph mode for all: only programs may"
        )
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


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server, None, None]:
    """A real S3 server for all tests of this process; see tests.remote.servers."""
    with credentials_in_environment(), running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server, None, None]:
    """A real S3 server that ignores conditions."""
    with credentials_in_environment(), running_rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture
def s3_address(seaweedfs: S3Server) -> str:
    """A place in it that nobody has used."""
    return seaweedfs.new_address()
