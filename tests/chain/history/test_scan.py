from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import Disk, Kind, Listing, Manifest, Scanner, directory_of, verify
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError
from tests.chain.manifests import delta, full, node
from tests.chain.model_trainer import ModelTrainer

pytestmark = pytest.mark.I3


def put(run_dir: Path, manifest: Manifest) -> Path:
    path = directory_of(run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(manifest.to_json())
    return path


def test_missing_directory_is_empty(tmp_path: Path) -> None:
    assert Scanner(tmp_path / "none").scan() == Listing()


def test_manifests_are_sorted_by_position_with_the_full_first(tmp_path: Path) -> None:
    manifests = [
        full("1.1"),
        delta("1.2", "1.1"),
        full("1.10", "1.9"),
        delta("1.10", "1.9"),
        delta("2.1", "1.10"),
    ]
    for manifest in reversed(manifests):
        put(tmp_path, manifest)
    assert Scanner(tmp_path).scan() == Listing(tuple(manifests))


def test_new_and_deleted_manifests_are_seen_by_the_next_scan(tmp_path: Path) -> None:
    scanner = Scanner(tmp_path)
    put(tmp_path, full("1.1"))
    first = scanner.scan()
    assert scanner.scan() is first
    path = put(tmp_path, delta("1.2", "1.1"))
    assert len(scanner.scan().manifests) == 2
    path.unlink()
    assert scanner.scan() == first


@pytest.mark.parametrize("seed", range(20))
def test_adding_manifests_one_by_one_is_the_same_as_scanning(tmp_path: Path, seed: int) -> None:
    other = replace(delta("1.3", "1.2"), prefix="incremental_model.ckpt-77", state_id="f" * 32)
    manifests = [
        full("1.1"),
        delta("1.2", "1.1"),
        delta("1.3", "1.2"),
        other,
        full("1.3", "1.2"),
        delta("2.1", "1.3"),
    ]
    random.Random(seed).shuffle(manifests)
    scanner = Scanner(tmp_path)
    for manifest in manifests:
        path = put(tmp_path, manifest)
        if seed % 2:
            whole = path.read_bytes()
            path.write_bytes(whole[:50])
            scanner.add([path])
            path.write_bytes(whole)
        added = scanner.add([path])
        assert added == Scanner(tmp_path).scan()
        assert scanner.scan() is added


class CountingScanner(Scanner):
    """Counts the listings that it makes of everything that it knows."""

    built = 0

    def _rebuilt(self) -> Listing:
        self.built += 1
        return super()._rebuilt()


def test_many_manifests_are_added_with_one_new_listing(tmp_path: Path) -> None:
    paths = [
        put(tmp_path, full("1.1")),
        *(put(tmp_path, delta(f"1.{n}", f"1.{n - 1}")) for n in range(2, 50)),
    ]
    expected = Scanner(tmp_path).scan()
    scanner = CountingScanner(tmp_path)
    assert scanner.add(reversed(paths)) == expected
    assert scanner.built == 1
    later = [put(tmp_path, delta(f"1.{n}", f"1.{n - 1}")) for n in (52, 51, 50)]
    assert len(scanner.add(later).manifests) == 52
    assert scanner.built == 1, "the newest are put at the end"
    assert scanner.scan() == Scanner(tmp_path).scan()


def test_what_is_refused_for_good_does_not_make_every_new_manifest_dear(tmp_path: Path) -> None:
    put(tmp_path, full("1.1"))
    broken = put(tmp_path, delta("1.5", "1.1"))
    broken.write_text("{}")
    scanner = CountingScanner(tmp_path)
    assert len(scanner.scan().refused) == 1
    built = scanner.built
    added = scanner.add([put(tmp_path, delta("1.2", "1.1"))])
    assert scanner.built == built
    assert added == Scanner(tmp_path).scan()


def under_another_name(manifest: Manifest, digit: str) -> Manifest:
    """Another state at the same position."""
    prefix = f"incremental_model.ckpt-{digit}"
    files = tuple(
        replace(file, name=file.name.replace(manifest.prefix, prefix, 1)) for file in manifest.files
    )
    return replace(manifest, prefix=prefix, files=files, state_id=digit * 32)


def test_a_third_state_at_a_disputed_position_is_refused_too(tmp_path: Path) -> None:
    put(tmp_path, full("1.1"))
    states = [under_another_name(delta("1.2", "1.1"), digit) for digit in "789"]
    for state in states[:2]:
        put(tmp_path, state)
    scanner = Scanner(tmp_path)
    assert len(scanner.scan().refused) == 2
    added = scanner.add([put(tmp_path, states[2])])
    assert len(added.refused) == 3
    assert added == Scanner(tmp_path).scan()


@pytest.mark.parametrize("name", ["\udcff", "\n", "\x1b[2J"])
def test_a_name_that_cannot_be_printed_is_no_manifest(tmp_path: Path, name: str) -> None:
    put(tmp_path, full("1.1"))
    path = tmp_path / f"model.ckpt-{name}{names.MANIFEST_SUFFIX}"
    path.write_text("{}")
    scanner = Scanner(tmp_path)
    assert scanner.scan() == scanner.add([path]) == Listing((full("1.1"),))


def test_a_known_manifest_is_not_added_twice_however_its_directory_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = put(Path(), full("1.1"))
    scanner = Scanner(Path())
    listing = scanner.scan()
    assert scanner.add([path]) is listing
    # Longer: in one tick of a coarse clock nothing else tells it from what was read.
    path.write_bytes(replace(full("1.13"), prefix=full("1.1").prefix).to_json())
    assert scanner.add([path]) == Scanner(Path()).scan()


def test_what_is_no_manifest_of_the_directory_is_not_added(tmp_path: Path) -> None:
    scanner = Scanner(tmp_path / "run")
    put(tmp_path / "run", full("1.1"))
    before = scanner.scan()
    elsewhere = put(tmp_path / "elsewhere", full("1.2"))
    foreign = tmp_path / "run" / "notes.json"
    foreign.write_text("{}")
    assert scanner.add([elsewhere, foreign, tmp_path / "run" / "model.ckpt-9.manifest.json"]) is before


def test_manifest_that_arrives_in_pieces_is_read_again(tmp_path: Path) -> None:
    scanner = Scanner(tmp_path)
    path = put(tmp_path, full("1.1"))
    content = path.read_bytes()
    path.write_bytes(content[:100])
    assert "not JSON" in scanner.scan().refused[0].reason
    path.write_bytes(content)
    assert scanner.scan() == Listing((full("1.1"),))


def test_unknown_format_version_is_refused_with_a_reason(tmp_path: Path) -> None:
    path = put(tmp_path, full("1.1"))
    path.write_bytes(path.read_bytes().replace(b'"format_version": 1', b'"format_version": 3'))
    listing = Scanner(tmp_path).scan()
    assert listing.manifests == ()
    assert "format_version 3" in listing.refused[0].reason
    assert listing.refused[0].path == path


def test_manifest_in_the_wrong_directory_or_under_another_name_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, full("1.1"))
    deltas = directory_of(tmp_path, Kind.DELTA)
    deltas.mkdir()
    path.rename(deltas / path.name)
    other = put(tmp_path, full("1.2"))
    other.rename(other.with_name(f"{names.FULL_STEM}9{names.MANIFEST_SUFFIX}"))
    listing = Scanner(tmp_path).scan()
    assert listing.manifests == ()
    assert {refused.position for refused in listing.refused} == {node("1.1").position, node("1.2").position}


@pytest.mark.parametrize("other", [delta(node("1.2", "b"), "1.1"), full(node("1.2", "b"), "1.1")])
def test_two_states_at_one_position_are_both_refused(tmp_path: Path, other: Manifest) -> None:
    put(tmp_path, full("1.1"))
    path = put(tmp_path, delta("1.2", "1.1"))
    path.rename(path.with_name(f"{names.DELTA_STEM}7{names.MANIFEST_SUFFIX}"))
    renamed = path.with_name(f"{names.DELTA_STEM}7{names.MANIFEST_SUFFIX}")
    renamed.write_bytes(renamed.read_bytes().replace(b"ckpt-2-1.2", b"ckpt-7"))
    put(tmp_path, other)
    listing = Scanner(tmp_path).scan()
    assert listing.manifests == (full("1.1"),)
    assert [refused.position for refused in listing.refused] == [other.position] * 2
    assert all("two different states" in refused.reason for refused in listing.refused)


def test_foreign_files_and_temporaries_are_not_looked_at(tmp_path: Path) -> None:
    put(tmp_path, full("1.1"))
    (tmp_path / "foreign.manifest.json").write_text("{}")
    (tmp_path / f"{names.TEMPORARY_PREFIX}model.ckpt-1.manifest.json").write_text("{}")
    (tmp_path / "checkpoint").write_text("")
    assert Scanner(tmp_path).scan() == Listing((full("1.1"),))


def test_unreadable_manifest_is_refused_and_read_when_it_can_be(tmp_path: Path) -> None:
    target = put(tmp_path, full("1.1"))
    target.unlink()
    target.mkdir()
    scanner = Scanner(tmp_path)
    assert "cannot be read" in scanner.scan().refused[0].reason
    target.rmdir()
    put(tmp_path, full("1.1"))
    assert scanner.scan() == Listing((full("1.1"),))


def commit_one(run_dir: Path) -> Manifest:
    trainer = ModelTrainer(run_dir, Disk())
    trainer.open()
    trainer.save({1: 1, 2: 2}, Kind.FULL)
    trainer.close()
    return Scanner(run_dir).scan().manifests[0]


def test_verified_commit_is_what_its_manifest_says(tmp_path: Path) -> None:
    verify(tmp_path, commit_one(tmp_path))


@pytest.mark.parametrize("role", [names.ROLE_INDEX, names.ROLE_SERVING])
def test_each_damage_of_a_file_is_named_with_whether_to_retry(tmp_path: Path, role: str) -> None:
    manifest = commit_one(tmp_path)
    path = tmp_path / next(file.name for file in manifest.files if file.role == role)
    content = path.read_bytes()
    flipped = bytes([content[0] ^ 1]) + content[1:]
    for damaged, is_retryable in [(flipped, False), (content + b"x", False), (content[:-1], True)]:
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=path.name) as caught:
            verify(tmp_path, manifest)
        assert caught.value.retryable is is_retryable
        assert (caught.value.path, caught.value.position) == (path, "1.1")
    path.unlink()
    with pytest.raises(DamagedError) as caught:
        verify(tmp_path, manifest)
    assert caught.value.retryable


def test_only_files_of_the_wanted_roles_are_verified(tmp_path: Path) -> None:
    manifest = commit_one(tmp_path)
    (tmp_path / names.data_name(manifest.prefix, 0, 1)).unlink()
    verify(tmp_path, manifest, roles=[names.ROLE_INDEX])
    with pytest.raises(DamagedError):
        verify(tmp_path, manifest, roles=[names.ROLE_SERVING])
