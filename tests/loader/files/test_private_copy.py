"""Private copies of fulls: they are made whatever becomes of their directory, and a killed server's do not stay."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Manifest, Position
from hotdelta.errors import DamagedError
from loader.files.private_copy import PrivateCopies
from tests.loader.step_model import find_commit

pytestmark = pytest.mark.I6


@pytest.fixture
def copies(temporary: Path) -> Iterator[PrivateCopies]:
    made = PrivateCopies()
    yield made
    made.close()


@pytest.fixture
def full(root: Path) -> Manifest:
    return find_commit(root / "run", Position(1, 1), Kind.FULL)


def test_a_copy_is_only_ours_and_goes_when_it_was_read(
    root: Path, temporary: Path, copies: PrivateCopies, full: Manifest
) -> None:
    files = copies.verify_files(root / "run", full)
    assert temporary in files.prefix.parents
    assert files.prefix.parent.stat().st_mode & 0o077 == 0
    files.close()
    assert [path for path in temporary.rglob("*") if path.is_file()] == []
    copies.close()
    assert list(temporary.iterdir()) == []


def test_a_name_that_somebody_else_took_meanwhile_is_not_ours(
    root: Path, temporary: Path, copies: PrivateCopies, full: Manifest
) -> None:
    copies.verify_files(root / "run", full).close()
    (ours,) = temporary.iterdir()
    ours.rename(temporary / "moved")
    ours.mkdir()
    files = copies.verify_files(root / "run", full)
    assert ours not in files.prefix.parents
    files.close()


def test_a_file_system_without_locks_will_do(
    root: Path, temporary: Path, full: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def know_no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", know_no_locks)
    first = PrivateCopies()
    files = first.verify_files(root / "run", full)
    PrivateCopies().close()
    assert files.prefix.with_suffix(f"{files.prefix.suffix}.index").is_file(), "it may be in use"
    files.close()
    first.close()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_server_left_is_removed_and_what_is_used_stays(
    root: Path, temporary: Path, copies: PrivateCopies, full: Manifest
) -> None:
    used = copies.verify_files(root / "run", full)
    killed = PrivateCopies()
    left = killed.verify_files(root / "run", full)
    # With the process its descriptors go, and its locks with them.
    os.close(killed._root._lock)
    foreign = temporary / "hotdelta-verified-link"
    foreign.symlink_to(root)
    PrivateCopies().close()
    assert not left.prefix.parent.exists()
    used.require_unchanged()
    assert (root / "run").exists()


def test_a_server_that_starts_at_that_moment_does_not_take_a_new_directory_for_an_abandoned_one(
    root: Path, copies: PrivateCopies, full: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp

    def make_beside_another_server(**where: str) -> str:
        made = make(**where)
        PrivateCopies().close()
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", make_beside_another_server)
    copies.verify_files(root / "run", full).require_unchanged()


def test_a_directory_that_a_cleaner_took_away_is_made_again(
    root: Path, temporary: Path, copies: PrivateCopies, full: Manifest
) -> None:
    copies.verify_files(root / "run", full).close()
    for path in temporary.iterdir():
        shutil.rmtree(path)
    copies.verify_files(root / "run", full).require_unchanged()


def test_without_room_the_full_waits(
    root: Path, copies: PrivateCopies, full: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(DamagedError, match="No space left") as caught:
        copies.verify_files(root / "run", full)
    assert caught.value.retryable
