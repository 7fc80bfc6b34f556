from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import Disk, Kind, Manifest, Scanner, delete, directory_of, expired, verify
from hotdelta.chain.format.names import manifest_name
from tests.chain.disks import Crash, CrashingDisk, PoweredDisk
from tests.chain.manifests import delta, full
from tests.chain.model_trainer import ModelServer, ModelTrainer
from tests.chain.store.test_crashes import list_leftovers

pytestmark = pytest.mark.I3


def show(manifests: tuple[Manifest, ...]) -> list[str]:
    return [f"{manifest.kind} {manifest.position}" for manifest in manifests]


CHAIN = [
    full("1.1"),
    delta("1.2", "1.1"),
    delta("1.3", "1.2"),
    full("1.3", "1.2"),
    delta("1.4", "1.3"),
    delta("1.5", "1.4"),
    full("1.5", "1.4"),
    delta("1.6", "1.5"),
]


@pytest.mark.parametrize(
    "manifests,keep_fulls,expected",
    [
        ([], 1, []),
        (CHAIN, 3, []),
        (CHAIN, 2, ["full 1.1", "delta 1.2"]),
        (CHAIN, 1, ["full 1.1", "delta 1.2", "full 1.3", "delta 1.3", "delta 1.4"]),
        ([*CHAIN, delta("2.1", "1.4")], 2, ["full 1.5", "delta 1.5", "delta 1.6"]),
        (
            [*CHAIN, delta("2.1", "1.2")],
            1,
            ["full 1.3", "delta 1.3", "delta 1.4", "full 1.5", "delta 1.5", "delta 1.6"],
        ),
        ([full("1.1"), delta("1.3", "1.2"), delta("1.4", "1.3")], 1, []),
        ([full("1.1"), delta("1.2", "1.1"), full("1.3", "1.2"), delta("1.4", "1.2")], 1, []),
        ([full("1.1"), full("2.1"), delta("2.2", "2.1")], 2, []),
        ([full("1.1"), delta("1.2", "1.1"), full("2.1")], 1, ["full 1.1", "delta 1.2"]),
    ],
)
def test_what_the_tip_needs_and_the_newest_fulls_stay(
    manifests: list[Manifest], keep_fulls: int, expected: list[str]
) -> None:
    assert show(expired(manifests, keep_fulls=keep_fulls)) == expected


def test_at_least_one_full_is_kept() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        expired(CHAIN, keep_fulls=0)


def train(run_dir: Path) -> ModelTrainer:
    trainer = ModelTrainer(run_dir, PoweredDisk())
    trainer.open()
    trainer.save({1: 1}, Kind.FULL)
    for value in range(4):
        trainer.save({value: value}, Kind.DELTA)
        trainer.save({value: -value}, Kind.DELTA, Kind.FULL)
    return trainer


def test_deleting_leaves_no_files_and_a_newcomer_finds_the_tip(tmp_path: Path) -> None:
    trainer = train(tmp_path)
    trainer.retain(2)
    trainer.close()
    assert show(Scanner(tmp_path).scan().manifests) == [
        "full 1.7", "delta 1.7", "delta 1.8", "full 1.9", "delta 1.9"
    ]  # fmt: skip
    assert list_leftovers(tmp_path) == set()
    server = ModelServer(tmp_path)
    server.follow()
    assert server.rows == trainer.rows


def test_crash_at_any_call_of_deleting_leaves_a_chain_that_works(tmp_path: Path) -> None:
    has_crashed, crash_at = True, 0
    while has_crashed:
        crash_at += 1
        run_dir = tmp_path / str(crash_at)
        trainer = train(run_dir)
        trainer.disk = CrashingDisk(crash_at)
        try:
            trainer.retain(1)
            has_crashed = False
        except Crash:
            pass
        trainer.close()
        for manifest in Scanner(run_dir).scan().manifests:
            verify(run_dir, manifest)
        server = ModelServer(run_dir)
        assert server.follow().problem is None
        assert server.rows == trainer.rows
        again = ModelTrainer(run_dir, PoweredDisk())
        again.open()
        again.retain(1)
        again.close()
        assert list_leftovers(run_dir) == set()
    assert crash_at > 20


def test_deleting_what_is_gone_already_deletes_the_rest_and_nothing_else(tmp_path: Path) -> None:
    train(tmp_path).close()
    manifest, *others = Scanner(tmp_path).scan().manifests
    directory = directory_of(tmp_path, manifest.kind)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    own = {directory / name for name in (manifest_name(manifest.prefix), *(f.name for f in manifest.files))}
    assert own < before
    (directory / manifest.files[0].name).unlink()
    for _ in range(2):
        delete(tmp_path, manifest, Disk())
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == before - own
    assert list(Scanner(tmp_path).scan().manifests) == others
