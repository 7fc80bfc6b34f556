"""What several machines wrote may be copied in any order: a commit is served when all that serving needs is there."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from exporter import export_saved_model
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.history.verification import directory_of
from loader import Loader, LoaderSettings
from tests.distributed.chains import assert_served, committed
from tests.distributed.cluster import Cluster

pytestmark = pytest.mark.I3

MOMENT_SECONDS = 0.3


@pytest.fixture(scope="module")
def trained(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A chain that two parameter servers wrote, and what they held at its end, where a full is."""
    run_dir = tmp_path_factory.mktemp("trained")
    cluster.start_servers(ps=2, workers=1)
    coordinator = cluster.coordinate(run_dir, ends_with_full=True)
    coordinator.wait_for("step", 4)
    return run_dir, coordinator.stop()


@pytest.fixture
def copied(trained: tuple[Path, Path], tmp_path: Path) -> Path:
    """Another directory that has the first full, and what lies beside the chain."""
    target = tmp_path / "copied"
    manifests = {names.manifest_name(manifest.prefix) for manifest in committed(trained[0])}
    files = {file.name for manifest in committed(trained[0]) for file in manifest.files}
    shutil.copytree(trained[0], target, ignore=shutil.ignore_patterns(*manifests, *files))
    first = committed(trained[0])[0]
    for file in first.files:
        copy(directory_of(trained[0], first.kind) / file.name, trained[0], target)
    copy(files_of(trained[0], first)[0], trained[0], target)
    return target


@pytest.fixture
def loader(copied: Path, tmp_path: Path) -> Iterator[Loader]:
    export_saved_model(copied, tmp_path / "export", save_incr_model=True)
    found = Loader(LoaderSettings(tmp_path / "export", copied, poll_seconds=0.05))
    found.start()
    try:
        yield found
    finally:
        found.stop()


def files_of(run_dir: Path, manifest: Manifest) -> list[Path]:
    """What serving needs, the manifest first: not the optimizer's part."""
    directory = directory_of(run_dir, manifest.kind)
    served = [file.name for file in manifest.files if file.role != names.ROLE_TRAINING]
    return [directory / name for name in (names.manifest_name(manifest.prefix), *served)]


def copy(path: Path, source: Path, target: Path) -> None:
    shutil.copy(path, target / path.relative_to(source))


def assert_appears_at_once(
    loader: Loader, commit: Manifest, files: Sequence[Path], places: tuple[Path, Path]
) -> None:
    """Not before the last of its files is there."""
    for path in files[:-1]:
        copy(path, *places)
        assert not loader.wait_for(commit.position, MOMENT_SECONDS)
    copy(files[-1], *places)
    assert loader.wait_for(commit.position, 60)


@pytest.mark.parametrize("kind", Kind)
def test_commit_copied_in_any_order_is_invisible_until_it_is_complete(
    kind: Kind, trained: tuple[Path, Path], copied: Path, loader: Loader
) -> None:
    run_dir = trained[0]
    newest = committed(run_dir)[-1].position
    wanted = [found for found in committed(run_dir)[1:] if found.kind is kind]
    if kind is Kind.FULL:
        wanted = wanted[-1:]
    for number, commit in enumerate(wanted):
        manifest, *data = files_of(run_dir, commit)
        random.Random(number).shuffle(data)
        files = [*data, manifest] if number % 2 else [manifest, *data]
        assert_appears_at_once(loader, commit, files, (run_dir, copied))
    assert wanted[-1].position == newest
    assert_served(loader, copied, trained[1])
