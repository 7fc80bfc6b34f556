"""The state directory belongs to one server at a time, and is none of those that are followed."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta import directory_lock
from hotdelta.errors import ConfigurationError
from loader import Loader, LoaderSettings
from loader.orders.order_book import ORDERS_FILE
from loader.orders.state_directory import StateDirectory

# Without TensorFlow, which takes seconds to import.
HOLD = "import runpy, subprocess, sys; runpy.run_path(sys.argv[1])['open_locked'](sys.argv[2]); "
HOLD += "subprocess.run(['cat'], close_fds=False)"


def settings(root: Path, state_dir: Path | None = None) -> LoaderSettings:
    return LoaderSettings(root / "export", root / "run", state_dir=state_dir or root / "state")


def test_two_servers_do_not_share_one(tmp_path: Path) -> None:
    first = Loader(settings(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "state")
    for name in ("state", "link"):
        with pytest.raises(ConfigurationError, match=rf"another server uses .*{name}.*of its own"):
            Loader(settings(tmp_path, tmp_path / name))
    first.stop()
    Loader(settings(tmp_path, tmp_path / "link")).stop()


def test_a_server_that_was_killed_does_not_keep_it_nor_does_a_program_that_it_had_started(
    tmp_path: Path,
) -> None:
    (tmp_path / "state").mkdir()
    command = [sys.executable, "-c", HOLD, directory_lock.__file__, str(tmp_path / "state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b"locked\n")
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigurationError, match="another server"):
            StateDirectory(settings(tmp_path))
        other.kill()
        other.wait()
        StateDirectory(settings(tmp_path)).close()


def test_a_loader_that_does_not_come_to_be_does_not_keep_it(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ORDERS_FILE).write_text("{")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="malformed"):
            Loader(settings(tmp_path))


def test_a_file_system_without_locks_will_do_and_the_directory_is_made_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def know_no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", know_no_locks)
    first = StateDirectory(settings(tmp_path))
    assert (tmp_path / "state").is_dir()
    # Nobody can be kept from sharing it.
    StateDirectory(settings(tmp_path)).close()
    first.close()


@pytest.mark.parametrize("place", ["run", "run/state", "export", "run/../run/x"])
def test_nothing_is_written_into_the_directories_that_are_followed(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError, match="only read"):
        StateDirectory(settings(tmp_path, tmp_path / place))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        StateDirectory(settings(tmp_path))
