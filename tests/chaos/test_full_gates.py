"""What is read of a full is what was verified of it: the gates, and what gets through without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Kind, Manifest
from loader import Checks
from loader.files.commit_files import VerifiedFiles, stamp_files, verify_files
from loader.files.private_copy import PrivateCopies
from tests.chaos.conftest import Prepared
from tests.chaos.hostile import rewrite
from tests.chaos.rig import FULL, NEWEST, NEXT, Rig, put, rig
from tests.loader.step_model import answer, commit_paths, find_commit

pytestmark = pytest.mark.I4

USERS = np.full((64, 4), 77.0, np.float32)
GARBAGE = np.full((64, 4), 1e30, np.float32)
ROW = 40

Verify = Callable[[Path, Manifest], VerifiedFiles]


@pytest.fixture
def only_full(copied: Prepared) -> Prepared:
    """Without the delta at FULL only the full leads on to NEWEST."""
    for path in commit_paths(copied[0] / "run", find_commit(copied[0] / "run", FULL)):
        path.unlink()
    return copied


class Careless(VerifiedFiles):
    """Does not look whether the files are still those that were verified."""

    def require_unchanged(self) -> None:
        return


def carelessly(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
    return Careless(run_dir, manifest, verify_files(run_dir, manifest).stamps)


def unverified(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
    return VerifiedFiles(run_dir, manifest, stamp_files(run_dir, manifest))


def replacing(verify: Verify) -> Verify:
    """Verifies, and has the files replaced right afterwards."""

    def verify_then_replace(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
        verified = verify(run_dir, manifest)
        if manifest.position == FULL:
            rewrite(run_dir, manifest, users=USERS)
        return verified

    return verify_then_replace


@contextmanager
def looked(prepared: Prepared, verify: Verify) -> Iterator[Rig]:
    with rig(*prepared, checks=Checks(files=verify)) as ready:
        ready.look()
        ready.look()
        yield ready


def require_spoiled(ready: Rig) -> None:
    outputs, version = answer(ready.loader)
    assert version.position == NEWEST
    assert (outputs["users"][ROW] == USERS[ROW]).all()


def spoil(root: Path) -> None:
    rewrite(root / "run", find_commit(root / "run", FULL, Kind.FULL), users=USERS)


def test_digests_of_a_full(only_full: Prepared) -> None:
    spoil(only_full[0])
    with looked(only_full, verify_files) as ready:
        ready.require_truth(NEXT)
        assert "manifest says" in ready.loader.status().reason


def test_without_digests_another_full_is_served(only_full: Prepared) -> None:
    spoil(only_full[0])
    with looked(only_full, unverified) as ready:
        require_spoiled(ready)


def test_a_full_whose_files_are_replaced_after_they_were_verified(only_full: Prepared) -> None:
    with looked(only_full, replacing(verify_files)) as ready:
        ready.require_truth(NEXT)
        assert ready.loader.status().reason


def test_garbage_that_came_after_a_full_was_verified_is_not_held_against_it(only_full: Prepared) -> None:
    """Its values would be, until an operator releases it; files that changed are looked at again."""
    run_dir = only_full[0] / "run"
    paths = commit_paths(run_dir, find_commit(run_dir, FULL, Kind.FULL))
    contents = {path: path.read_bytes() for path in paths}
    faults = iter([GARBAGE])

    def verify_then_spoil_once(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
        verified = verify_files(run_dir, manifest)
        for garbage in faults:
            rewrite(run_dir, manifest, users=garbage)
        return verified

    with looked(only_full, verify_then_spoil_once) as ready:
        ready.require_truth(NEXT)
        for path, content in contents.items():
            put(path, content)
        ready.look()
        ready.require_truth(NEWEST)


def test_without_the_second_look_replaced_files_are_served(only_full: Prepared) -> None:
    with looked(only_full, replacing(carelessly)) as ready:
        require_spoiled(ready)


def test_private_copies_are_read_whatever_happens_to_the_files(only_full: Prepared) -> None:
    copies = PrivateCopies()
    with looked(only_full, replacing(copies.verify_files)) as ready:
        ready.require_truth(NEWEST)
    copies.close()
