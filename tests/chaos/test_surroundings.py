"""A real server whose surroundings fail it: lost rights, clocks that jump, times and names that cannot be."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotdelta.chain.format import names
from tests.chaos.deployment import Deployment
from tests.chaos.programs import obeying, with_clock
from tests.chaos.seeds import seeded
from tests.waiting import wait_until

pytestmark = pytest.mark.I4

JUMPS = (3600.0, -3600.0, 1e9, -1e9, 0.0)
STRANGE_TIMES = (0.0, -1.0, 1e9, 1e12, -1e12, 1e18, -1e300, 1e308)
STRANGE_NAMES = (b"\xff", b"\n2031", b"\xed\xa0\x80", b"\x1b[2J", b'"')
MOST_TOLD_BYTES = 100_000


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Trainer and server have clocks that a test can set; permissions count for the server."""
    root = tmp_path_factory.mktemp("surroundings")
    for name in ("writer-clock", "server-clock"):
        (root / name).write_text("0")
    deployment = Deployment(
        root,
        seeded("surroundings"),
        writer_launcher=with_clock(root / "writer-clock"),
        server_launcher=obeying(with_clock(root / "server-clock")),
    )
    yield deployment
    deployment.close()


def survive(deployment: Deployment, lose: Callable[[], object], restore: Callable[[], object]) -> str:
    """What the server says of a commit that comes while something is lost. Afterwards it recovers, with no new data."""
    lose()
    reason = deployment.wait_for_newest_or_reason()
    restore()
    deployment.wait_for_newest()
    deployment.require_health()
    return reason


def test_a_file_that_may_not_be_read_is_read_when_it_may(deployment: Deployment) -> None:
    for kind in (".index", ".data-00000", names.MANIFEST_SUFFIX):
        deployment.train()
        path = next(path for path in deployment.new_files() if kind in path.name)
        target = deployment.target(path)

        def lose(path: Path = path) -> None:
            deployment.deliver(path, mode=0)
            deployment.deliver_all()

        def restore(target: Path = target) -> None:
            target.chmod(0o644)

        assert "Permission denied" in survive(deployment, lose, restore)


def test_a_directory_that_may_not_be_read_is_read_when_it_may(deployment: Deployment) -> None:
    run = deployment.root / "run"
    for directory in (run, run / names.DELTA_DIRECTORY):
        deployment.train()

        def lose(directory: Path = directory) -> None:
            # The copy tool may be somebody who could not write to it later either.
            deployment.server.process.send_signal(signal.SIGSTOP)
            deployment.deliver_all()
            directory.chmod(0)
            deployment.server.process.send_signal(signal.SIGCONT)

        def restore(directory: Path = directory) -> None:
            directory.chmod(0o755)

        assert "Permission denied" in survive(deployment, lose, restore)


@pytest.mark.parametrize("whose", ["writer", "server"])
def test_clocks_that_jump(deployment: Deployment, whose: str) -> None:
    for jump in JUMPS:
        (deployment.root / f"{whose}-clock").write_text(str(jump))
        deployment.train()
        deployment.deliver_all()
        deployment.wait_for_newest()
        told = deployment.server.version()
        assert (told["reason"], told["update_state"]) == (None, "following")
        assert told["seconds_behind"] >= 0
        deployment.require_health()


@pytest.mark.parametrize("field", ["created_at", "watermark"])
def test_times_that_cannot_be(deployment: Deployment, field: str) -> None:
    """Nothing checks the times of a manifest that is not signed: whatever they are, the server says what it serves."""
    for seconds in STRANGE_TIMES:
        deployment.train()
        for path in deployment.new_files():
            content = path.read_bytes()
            if path.name.endswith(names.MANIFEST_SUFFIX):
                content = json.dumps({**json.loads(content), field: seconds}).encode()
            deployment.deliver(path, content)
        deployment.wait_for_newest_or_reason()
        wait_until(
            lambda: deployment.server.http.get("/model/version").status_code == 200, "it tells its version"
        )
        deployment.deliver_again()
        deployment.wait_for_newest()
        deployment.require_health()


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_names_that_are_no_text(deployment: Deployment, name: bytes) -> None:
    """A manifest of a state to come, under a name that nothing but a file system takes."""
    newest = deployment.newest_manifest().read_bytes()
    text = newest.replace(f'"{deployment.newest}"'.encode(), b'"999.1"')
    assert text != newest
    path = os.fsencode(deployment.root / "run") + b"/model.ckpt-" + name + names.MANIFEST_SUFFIX.encode()
    with open(path, "wb") as file:  # noqa: PTH123 - a Path is text
        file.write(text)
    deployment.train()
    deployment.deliver_all()
    deployment.wait_for_newest()
    for route in ("/model/version", "/readyz", "/healthz"):
        assert deployment.server.http.get(route).status_code == 200
    os.unlink(path)  # noqa: PTH108
    deployment.require_health()


def test_a_manifest_that_would_be_quoted_at_length(deployment: Deployment) -> None:
    path = deployment.root / "run" / f"model.ckpt-1{names.MANIFEST_SUFFIX}"
    document = json.loads(deployment.newest_manifest().read_bytes())
    document["tables"] = {"x" * 4_000_000: {}}
    path.write_text(json.dumps(document))
    wait_until(lambda: path.name in deployment.server.http.get("/model/version").text, "it is refused")
    assert len(deployment.server.http.get("/model/version").content) < MOST_TOLD_BYTES
    path.unlink()
    deployment.require_health()
