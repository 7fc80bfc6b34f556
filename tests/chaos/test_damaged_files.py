"""2,000 and more damaged files, in process: each fault is looked at once, healed, and looked at again.

After the fault the old state goes on serving bit for bit, or the new one when the damage does not matter; after the
healing the newest is served. Nothing is restarted in between: one loader lives through all faults to deltas, another
through all faults to fulls.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Position
from tests.chaos.conftest import Prepared, copy_of, hide_after, rig_before_delta, rig_before_full
from tests.chaos.rig import BEFORE, FULL, NEWEST, NEXT, Rig, put, remove
from tests.chaos.seeds import seeded

pytestmark = pytest.mark.I4

Fault = Callable[[], None]

survived: list[str] = []
"""The file of each fault, so that they can be counted."""


@pytest.fixture(scope="module")
def delta_rig(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    until_next = copy_of(prepared, tmp_path_factory.mktemp("delta"))
    hide_after(until_next[0], NEXT)
    with rig_before_delta(until_next) as ready:
        yield ready


@pytest.fixture(scope="module")
def full_rig(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig_before_full(copy_of(prepared, tmp_path_factory.mktemp("full"))) as ready:
        yield ready


def survive(rig: Rig, path: Path, fault: Fault, *, before: Position, after: Position) -> None:
    """One fault to one file of the commit that leads on, its healing, and the way back for the next one."""
    good = path.read_bytes()
    rig.go_back(before)
    fault()
    rig.look()
    rig.require_truth(before, after)
    put(path, good)
    rig.look()
    rig.require_truth(after)
    survived.append(path.name)


def flips(path: Path, count: int | None, name: str) -> Iterator[bytes]:
    """The content with one bit flipped: in every other byte, or in so many random ones."""
    chance, good = seeded(name), path.read_bytes()
    every_other = range(chance.randrange(2), len(good), 2)
    places = every_other if count is None else sorted(chance.sample(range(len(good)), count))
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << chance.randrange(8)
        yield bytes(bad)


def cuts(path: Path, count: int, name: str) -> Iterator[bytes]:
    """The content cut off, and lengthened."""
    chance, good = seeded(name), path.read_bytes()
    for _ in range(count):
        yield good[: chance.randrange(len(good))]
    yield good + b"\0"


DELTA_FLIPS = (".index", "data-00000-of-00002", ".manifest.json")
TESTS_BEFORE = 18
SOAK_FLIPS = 1000
FULL_FLIPS = {".index": 150, "data-00000-of-00002": 250, ".manifest.json": 150}


@pytest.mark.parametrize("kind_of_file", DELTA_FLIPS)
def test_flipped_bits_of_a_delta(delta_rig: Rig, kind_of_file: str) -> None:
    path = next(path for path in delta_rig.paths(NEXT) if path.name.endswith(kind_of_file))
    for bad in flips(path, None, kind_of_file):
        survive(delta_rig, path, functools.partial(put, path, bad), before=BEFORE, after=NEXT)


@pytest.mark.parametrize("kind_of_file", FULL_FLIPS)
def test_flipped_bits_of_a_full(full_rig: Rig, kind_of_file: str) -> None:
    path = next(path for path in full_rig.paths(FULL, Kind.FULL) if path.name.endswith(kind_of_file))
    for bad in flips(path, FULL_FLIPS[kind_of_file], kind_of_file):
        survive(full_rig, path, functools.partial(put, path, bad), before=NEXT, after=NEWEST)


@pytest.mark.parametrize("number", range(4), ids=["serving", "training", "index", "manifest"])
def test_cut_off_files_of_a_delta(delta_rig: Rig, number: int) -> None:
    path = delta_rig.paths(NEXT)[number]
    for bad in cuts(path, 80, f"cut {number}"):
        survive(delta_rig, path, functools.partial(put, path, bad), before=BEFORE, after=NEXT)


@pytest.mark.parametrize("number", range(4), ids=["serving", "training", "index", "manifest"])
def test_cut_off_files_of_a_full(full_rig: Rig, number: int) -> None:
    path = full_rig.paths(FULL, Kind.FULL)[number]
    for bad in cuts(path, 20, f"cut full {number}"):
        survive(full_rig, path, functools.partial(put, path, bad), before=NEXT, after=NEWEST)


@pytest.mark.parametrize("number", range(4), ids=["serving", "training", "index", "manifest"])
def test_files_that_are_something_else(delta_rig: Rig, number: int, tmp_path: Path) -> None:
    """Missing, empty, a directory, a pipe, a link out of the directory, a link to itself, unreadable, another's."""
    path = delta_rig.paths(NEXT)[number]
    (tmp_path / "outside").write_bytes(path.read_bytes())
    other = delta_rig.paths(BEFORE)[number].read_bytes()

    def become(make: Callable[[], object]) -> Fault:
        def fault() -> None:
            remove(path)
            make()

        return fault

    makers: list[Callable[[], object]] = [
        lambda: None,
        path.touch,
        path.mkdir,
        lambda: os.mkfifo(path),
        lambda: path.symlink_to(tmp_path / "outside"),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.write_bytes(other),
        lambda: path.write_bytes(os.urandom(4096)),
    ]
    for make in makers:
        survive(delta_rig, path, become(make), before=BEFORE, after=NEXT)


def test_those_were_2000_faults(request: pytest.FixtureRequest) -> None:
    """After all others of this file; when only some of them were run before it there is nothing to count."""
    items = request.session.items
    before = items[: items.index(request.node)]
    ran = sum(1 for item in before if item.path == request.path and not _is_soak(item))
    if ran < TESTS_BEFORE:
        pytest.skip("only some of the faults were run")
    print(f"{len(survived)} faults were survived")
    assert len(survived) >= 2000


def _is_soak(item: pytest.Item) -> bool:
    return item.get_closest_marker("soak") is not None


@pytest.mark.soak
def test_every_bit_of_every_small_file(delta_rig: Rig) -> None:
    """And random bits of them, so that there are 20,000 faults whatever the size of the files."""
    faults = 0
    for path in delta_rig.paths(NEXT):
        for bad in itertools.chain(every_bit(path), random_bits(path, SOAK_FLIPS)):
            survive(delta_rig, path, functools.partial(put, path, bad), before=BEFORE, after=NEXT)
            faults += 1
    print(f"{faults} faults were survived")
    assert faults >= 20_000


def every_bit(path: Path) -> Iterator[bytes]:
    good = path.read_bytes()
    for place in range(8 * len(good)):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        yield bytes(bad)


def random_bits(path: Path, count: int) -> Iterator[bytes]:
    """Several bits at once."""
    chance, good = seeded(f"bits {path.name}"), path.read_bytes()
    for _ in range(count):
        bad = bytearray(good)
        for _ in range(chance.randrange(2, 9)):
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        yield bytes(bad)
