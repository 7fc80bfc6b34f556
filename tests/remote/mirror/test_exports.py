"""Exports come whole, the newest first, and old ones go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdelta.errors import ConfigurationError
from hotdelta.remote import layout
from hotdelta.remote.mirror.exports import ExportMirror, versions_to_remove, wanted_versions
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.trees import find_tree, put_new_tree, replace_tree
from tests.chain.disks import PoweredDisk
from tests.waiting import wait_until

QUICK = MirrorSettings(exports_seconds=0.1, retry_seconds=0.1)


@pytest.mark.parametrize(
    "stored,served,is_refused,expected",
    [
        ([], None, False, ()),
        ([1, 2, 10], None, False, (10,)),
        ([1, 2, 10], 10, False, ()),
        ([1, 2, 10], 2, False, (10,)),
        ([1, 2, 10], 1, True, (10, 2)),
        ([1], None, True, (1,)),
    ],
)
def test_the_newest_is_wanted_and_the_one_before_it_when_that_is_of_no_use(
    stored: list[int], served: int | None, is_refused: bool, expected: tuple[int, ...]
) -> None:
    assert wanted_versions(stored, served, is_newest_refused=is_refused) == expected


@pytest.mark.parametrize(
    "served,wanted,max_bytes,expected",
    [(3, (), 300, ()), (3, (), 299, (1,)), (3, (), 1, (1, 2)), (None, (), 1, ()), (2, (3,), 1, (1,))],
)
def test_what_is_older_than_the_served_one_makes_room(
    served: int | None, wanted: tuple[int, ...], max_bytes: int, expected: tuple[int, ...]
) -> None:
    local = {1: 100, 2: 100, 3: 100}
    assert versions_to_remove(local, served, wanted, max_bytes=max_bytes) == expected


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Serving:
    """Serves the newest that is there, at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.version: int | None = None
        self.arrivals = 0

    def arrived(self) -> None:
        self.arrivals += 1
        self.version = max(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())

    def files(self, version: int) -> dict[str, bytes]:
        top = self.directory / str(version)
        return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(tmp_path / "exports")


@pytest.fixture
def mirror(store: MemoryStore, serving: Serving) -> Iterator[ExportMirror]:
    mirror = start(store, serving)
    yield mirror
    mirror.stop()


def start(store: Store, serving: Serving, settings: MirrorSettings = QUICK) -> ExportMirror:
    mirror = ExportMirror(
        store,
        serving.directory,
        settings,
        served=lambda: serving.version,
        on_arrival=serving.arrived,
        disk=PoweredDisk(),
    )
    mirror.start()
    return mirror


def export(tmp_path: Path, content: bytes) -> Path:
    directory = tmp_path / "exported"
    (directory / "variables").mkdir(parents=True, exist_ok=True)
    (directory / "saved_model.pb").write_bytes(content)
    (directory / "variables" / "variables.index").write_bytes(content * 2)
    return directory


def test_each_version_appears_whole(
    store: MemoryStore, serving: Serving, mirror: ExportMirror, tmp_path: Path
) -> None:
    wait_until(lambda: mirror.status().is_reached, mirror.status)
    for version in (1, 2):
        put_new_tree(store, str(version), export(tmp_path, b"%d" % version))
        wait_until(lambda version=version: serving.version == version, mirror.status)  # type: ignore[misc]
        assert serving.files(version)["saved_model.pb"] == b"%d" % version
    assert mirror.status().fetched_exports == 2
    assert serving.arrivals == 2


def test_what_is_no_version_is_left_where_it_is(
    store: MemoryStore, serving: Serving, mirror: ExportMirror, tmp_path: Path
) -> None:
    put_new_tree(store, "serving_graph-0123", export(tmp_path, b"graph"))
    put_new_tree(store, "3", export(tmp_path, b"3"))
    wait_until(lambda: serving.version == 3, mirror.status)
    assert sorted(path.name for path in serving.directory.iterdir()) == [".tree-3", "3"]


def test_a_restart_fetches_nothing_again_but_what_has_changed(
    store: MemoryStore, serving: Serving, tmp_path: Path
) -> None:
    put_new_tree(store, "1", export(tmp_path, b"1"))
    first = start(store, serving)
    wait_until(lambda: serving.version == 1, first.status)
    first.stop()
    serving.version = None
    again = start(store, serving)
    wait_until(lambda: again.status().is_reached, again.status)
    assert again.status().fetched_exports == 0
    replace_tree(store, "1", export(tmp_path, b"another"))
    wait_until(lambda: again.status().fetched_exports == 1, again.status)
    assert serving.files(1)["saved_model.pb"] == b"another"
    again.stop()


def test_a_damaged_export_does_not_appear_and_is_told(
    store: MemoryStore, serving: Serving, mirror: ExportMirror, tmp_path: Path
) -> None:
    directory = export(tmp_path, b"good")
    put_new_tree(store, "1", directory)
    wait_until(lambda: serving.version == 1, mirror.status)
    put_new_tree(store, "2", export(tmp_path, b"2"))
    tree = find_tree(store, "2")
    assert tree is not None
    for file in tree.files:
        store.put(tree.object_name(file), b"x" * file.bytes)
    wait_until(lambda: "export 2" in mirror.status().problem or serving.version == 2, mirror.status)
    assert serving.version in (1, 2)
    if serving.version == 1:
        assert not (serving.directory / "2").exists()
        for file in tree.files:
            store.put(tree.object_name(file), (tmp_path / "exported" / file.path).read_bytes())
    wait_until(lambda: serving.version == 2, mirror.status)
    assert store.get(layout.tree_name("2"), max_bytes=10_000)


def test_old_versions_make_room(store: MemoryStore, serving: Serving, tmp_path: Path) -> None:
    mirror = start(store, serving, MirrorSettings(exports_seconds=0.1, max_bytes=2**20))
    for version in (1, 2, 3):
        put_new_tree(store, str(version), export(tmp_path, b"%d" % version * 300_000))
        wait_until(lambda version=version: serving.version == version, mirror.status)  # type: ignore[misc]
    wait_until(lambda: not (serving.directory / "1").exists(), mirror.status)
    assert (serving.directory / "3").exists()
    mirror.stop()


def test_two_mirrors_do_not_share_a_directory(
    store: MemoryStore, serving: Serving, mirror: ExportMirror
) -> None:
    with pytest.raises(ConfigurationError, match="another server mirrors"):
        ExportMirror(store, serving.directory, QUICK)
