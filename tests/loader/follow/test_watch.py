"""The watch says "look again" for directories that come, go and are replaced. No polling here: events alone."""

from __future__ import annotations

import ctypes
import errno
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loader.follow.wake import Wake
from loader.follow.watch import HAS_EVENTS, DirectoryWatch
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.skipif(not HAS_EVENTS, reason="directories are watched on Linux only")


class Looks:
    """Remembers the calls, and waits for one."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.places: list[Path | None] = []

    def __call__(self, manifest: Path | None) -> None:
        self.places.append(manifest)
        self._asked.set()

    def expect(self) -> None:
        assert self._asked.wait(LIMIT_SECONDS), "nobody said look again"
        self._asked.clear()


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def watch(tmp_path: Path, looks: Looks) -> Iterator[DirectoryWatch]:
    watch = DirectoryWatch([tmp_path / "run"], looks)
    watch.start()
    watch.refresh()
    yield watch
    watch.stop()


def test_file_in_a_directory_that_appeared_later_is_noticed(
    tmp_path: Path, watch: DirectoryWatch, looks: Looks
) -> None:
    (tmp_path / "run").mkdir()
    watch.refresh()
    (tmp_path / "run" / "model.ckpt-1.manifest.json").touch()
    looks.expect()


def test_file_in_a_replaced_directory_is_noticed(tmp_path: Path, watch: DirectoryWatch, looks: Looks) -> None:
    (tmp_path / "run").mkdir()
    watch.refresh()
    (tmp_path / "run").rename(tmp_path / "old")
    (tmp_path / "run").mkdir()
    watch.refresh()
    (tmp_path / "run" / "model.ckpt-1.manifest.json").touch()
    looks.expect()


def test_link_and_rename_are_noticed(tmp_path: Path, watch: DirectoryWatch, looks: Looks) -> None:
    (tmp_path / "run").mkdir()
    watch.refresh()
    (tmp_path / "run" / ".tmp-a").touch()
    (tmp_path / "run" / "b").hardlink_to(tmp_path / "run" / ".tmp-a")
    looks.expect()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "run" / "7")
    looks.expect()


def test_a_directory_that_vanishes_is_worth_a_look_and_no_warning_and_is_watched_when_it_is_back(
    tmp_path: Path, watch: DirectoryWatch, looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    watch.refresh()
    (tmp_path / "run").rmdir()
    looks.expect()
    watch.refresh()
    watch.refresh()
    assert caplog.text == ""
    (tmp_path / "run").mkdir()
    watch.refresh()
    (tmp_path / "run" / "model.ckpt-1.manifest.json").touch()
    looks.expect()
    assert looks.places[-1] == tmp_path / "run" / "model.ckpt-1.manifest.json"


def test_file_in_a_directory_that_was_deleted_and_made_again_is_noticed(
    tmp_path: Path, watch: DirectoryWatch, looks: Looks
) -> None:
    """Many file systems give the new one the inode number of the old one."""
    (tmp_path / "run").mkdir()
    watch.refresh()
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").mkdir()
    looks.expect()
    watch.refresh()
    (tmp_path / "run" / "model.ckpt-1.manifest.json").touch()
    looks.expect()


def refuse_to_watch(*_: object) -> int:
    """What the system does for a directory that the user may not read; root may read them all."""
    ctypes.set_errno(errno.EACCES)
    return -1


def test_a_directory_that_may_not_be_read_is_told_of_once_and_watched_as_soon_as_it_may(
    tmp_path: Path,
    watch: DirectoryWatch,
    looks: Looks,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tmp_path / "run"
    for number in (1, 2):
        run.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr("watchdog.observers.inotify_c.inotify_add_watch", refuse_to_watch)
            watch.refresh()
            watch.refresh()
        assert caplog.text.count("Permission denied") == number
        watch.refresh()
        (run / "model.ckpt-1.manifest.json").touch()
        looks.expect()
        run.rename(tmp_path / f"old-{number}")


def test_a_directory_that_is_given_twice_is_watched_twice(tmp_path: Path, looks: Looks) -> None:
    """As the exports may lie beside the checkpoints."""
    run = tmp_path / "run"
    watch = DirectoryWatch([run, run], looks)
    watch.start()
    try:
        for number in (1, 2):
            run.mkdir()
            watch.refresh()
            looks.places.clear()
            (run / "1").mkdir()
            wait_until(lambda: looks.places == [None, None], "two looks for one event")
            run.rename(tmp_path / f"old-{number}")
            watch.refresh()
    finally:
        watch.stop()


def test_wake_tells_a_look_from_a_report() -> None:
    wake = Wake()
    wake.report()
    assert not wake.wait(LIMIT_SECONDS)
    wake.look()
    wake.report()
    assert wake.wait(LIMIT_SECONDS)
    assert wake.take() is None
    assert not wake.wait(0)


def test_wake_collects_the_manifests_to_look_at() -> None:
    wake = Wake()
    wake.look(Path("a"))
    wake.look(Path("b"))
    assert wake.wait(LIMIT_SECONDS)
    assert wake.take() == frozenset({Path("a"), Path("b")})
    wake.look(Path("a"))
    wake.look()
    wake.look(Path("b"))
    assert wake.take() is None, "somebody said that it may be anything"
    wake.look(Path("c"))
    assert wake.take() == frozenset({Path("c")})


def test_wake_asks_for_everything_when_very_much_is_new() -> None:
    wake = Wake()
    for number in range(1000):
        wake.look(Path(str(number)))
    assert wake.take() is None
    wake.look(Path("a"))
    assert wake.take() == frozenset({Path("a")})


def test_a_manifest_is_named_and_the_files_before_it_are_not_worth_a_look(
    tmp_path: Path, watch: DirectoryWatch, looks: Looks
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    watch.refresh()
    for name in (
        ".tmp-x",
        "checkpoint",
        "model.ckpt-1.index",
        "incremental_model.ckpt-1.data-00000-of-00001",
    ):
        (run / name).touch()
    (run / "model.ckpt-1.manifest.json").touch()
    looks.expect()
    assert set(looks.places) == {run / "model.ckpt-1.manifest.json"}


def test_lost_events_ask_for_a_look_at_everything(tmp_path: Path) -> None:
    """The queue of the system runs over while nobody takes events out of it."""
    capacity = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if capacity > 20_000:
        pytest.skip(f"this system keeps {capacity} events")
    looks, may_go_on = Looks(), threading.Event()

    def look_slowly(manifest: Path | None) -> None:
        may_go_on.wait(LIMIT_SECONDS)
        if manifest is None:
            looks(manifest)

    watch = DirectoryWatch([tmp_path], look_slowly)
    watch.start()
    try:
        watch.refresh()
        (tmp_path / "model.ckpt-0.manifest.json").touch()
        here, there = tmp_path / ".tmp-here", tmp_path / ".tmp-there"
        here.mkdir()
        # One read takes some of them out before the first is looked at.
        for _ in range((capacity + 4096) // 2):
            here.rename(there)
            there.rename(here)
        may_go_on.set()
        looks.expect()
    finally:
        may_go_on.set()
        watch.stop()
