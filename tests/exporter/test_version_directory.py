"""`export/<version>/` at the moment when it gets its name."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from exporter.version_directory import new_version, publish
from hotdelta.chain.disk import Disk
from hotdelta.errors import ConfigurationError

pytestmark = pytest.mark.I3


def write(temporary: Path) -> None:
    temporary.mkdir()
    (temporary / "saved_model.pb").write_text("mine")


class UnsyncedDisk(Disk):
    """Fails to make the names in one directory durable."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sync_directory(self, path: Path) -> None:
        if path == self._directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().sync_directory(path)


class FullDisk(Disk):
    """Has no room for another name."""

    def rename(self, source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))


def test_a_version_whose_name_is_not_yet_durable_is_published_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    temporary, target = tmp_path / "temporary", tmp_path / "1"
    write(temporary)
    with caplog.at_level(logging.WARNING):
        publish(temporary, target, disk=UnsyncedDisk(tmp_path))

    assert (target / "saved_model.pb").read_text() == "mine"
    assert "published, but not yet durable" in caplog.text
    assert "Input/output error" in caplog.text


def test_a_version_that_somebody_else_put_there_meanwhile_is_neither_overwritten_nor_claimed(
    tmp_path: Path,
) -> None:
    def export() -> None:
        with new_version(tmp_path, None) as (temporary, target):
            write(temporary)
            target.mkdir()
            (target / "saved_model.pb").write_text("theirs")

    with pytest.raises(ConfigurationError, match="1 exists already"):
        export()
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".exporter.lock", "1"]


def test_a_disk_that_fails_is_not_taken_for_a_version_that_exists(tmp_path: Path) -> None:
    temporary, target = tmp_path / "temporary", tmp_path / "1"
    write(temporary)
    target.mkdir()
    with pytest.raises(OSError, match="No space left"):
        publish(temporary, target, disk=FullDisk())


def test_names_that_no_server_looks_at_do_not_count(tmp_path: Path) -> None:
    for name in ("3", "007", "9" * 30, "-8", "notes"):
        (tmp_path / name).mkdir()
    with new_version(tmp_path, None) as (temporary, target):
        write(temporary)
    assert target.name == "8"


def test_after_the_last_number_there_is_no_next(tmp_path: Path) -> None:
    (tmp_path / str(10**18 - 1)).mkdir()
    with pytest.raises(ConfigurationError, match="is no version number"), new_version(tmp_path, None):
        pass


@pytest.mark.parametrize("version, is_told", [(5, True), (8, False), (None, False)])
def test_a_version_that_servers_would_not_choose_is_told(
    tmp_path: Path, version: int | None, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "7").mkdir()
    with caplog.at_level(logging.WARNING), new_version(tmp_path, version) as (temporary, _):
        write(temporary)

    assert ("servers prefer a higher version that is there version=5 highest=7" in caplog.text) == is_told
