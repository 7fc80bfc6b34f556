"""Damaged exports, in process: whatever bit of whatever file is flipped, an export is refused or answers the same."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotdelta.errors import HotdeltaError
from hotdelta.signatures import METADATA_FILE
from loader.model.live_model import LiveModel
from tests.chaos.conftest import Prepared
from tests.chaos.rig import put
from tests.chaos.seeds import seeded
from tests.loader.step_model import ROWS, SIGNATURE

pytestmark = pytest.mark.I4

SMALL_FILES = ("saved_model.pb", "fingerprint.pb", "variables/variables.index", METADATA_FILE)
# What else TensorFlow saves of a model, and the values.
DATA_FILES = tuple(f"variables/variables.data-0000{shard}-of-00002" for shard in range(2))
CI_FLIPS, SOAK_FLIPS = 1500, 100_000
CI_VALUE_FLIPS, SOAK_VALUE_FLIPS = 6, 200

Answer = tuple[str, dict[str, bytes]]


@pytest.fixture
def export(prepared: Prepared, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared[0] / "export" / "1", tmp_path / "1"))


def answer_of(export: Path) -> Answer:
    """The position that an export says that it holds, and all its values."""
    model = LiveModel.load(export)
    try:
        found = model.predict(SIGNATURE, {"ids": np.arange(ROWS)})
        return str(model.node), {name: value.tobytes() for name, value in found.items()}
    finally:
        model.close()


def survive(export: Path, name: str, bad: bytes, expected: Answer) -> None:
    good = (export / name).read_bytes()
    put(export / name, bad)
    with contextlib.suppress(HotdeltaError):
        assert answer_of(export) == expected, f"another answer, with {name} damaged"
    put(export / name, good)


def flips(content: bytes, count: int, name: str) -> Iterator[bytes]:
    """One bit of every byte, or of so many bytes."""
    chance = seeded(name)
    for place in sorted(chance.sample(range(len(content)), min(count, len(content)))):
        bad = bytearray(content)
        bad[place] ^= 1 << chance.randrange(8)
        yield bytes(bad)


def flip_all(export: Path, names: tuple[str, ...], count: int) -> None:
    expected, done = answer_of(export), 0
    for name in names:
        for bad in flips((export / name).read_bytes(), count, name):
            survive(export, name, bad, expected)
            done += 1
    assert answer_of(export) == expected
    print(f"{done} damaged exports were refused, or answered the same")


def test_flipped_bits_of_the_small_files(export: Path) -> None:
    flip_all(export, SMALL_FILES, CI_FLIPS)


def test_flipped_bits_of_the_values(export: Path) -> None:
    """Each takes a third of a second, because the whole export is read before the damage is seen; more in soak."""
    flip_all(export, DATA_FILES, CI_VALUE_FLIPS)


@pytest.mark.soak
def test_more_flipped_bits_of_the_values(export: Path) -> None:
    flip_all(export, DATA_FILES, SOAK_VALUE_FLIPS)


@pytest.mark.soak
def test_a_flipped_bit_in_every_byte_of_the_small_files(export: Path) -> None:
    flip_all(export, SMALL_FILES, SOAK_FLIPS)


@pytest.mark.parametrize("name", [*SMALL_FILES, *DATA_FILES])
def test_files_that_are_missing_or_cut_off(export: Path, name: str) -> None:
    expected, content = answer_of(export), (export / name).read_bytes()
    for bad in (b"", content[: len(content) // 2], content + b"\0"):
        survive(export, name, bad, expected)
    (export / name).unlink()
    with pytest.raises(HotdeltaError):
        LiveModel.load(export)
