"""The rows of a resume point are put together chunk by chunk, in several threads; damage is told in order."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensorflow as tf

import hotdelta.io as hio
from hotdelta.chain import names
from hotdelta.chain.manifest import Kind
from hotdelta.chain.scan import Scanner
from hotdelta.chain.verification import directory_of
from hotdelta.errors import DamagedError
from hotdelta.train import stored_values
from hotdelta.train.first_damage import first_damage
from hotdelta.train.resume import ResumeReader, find_resume_point
from tests.chain_replay import values_of
from tests.train.small_training import ROWS, SmallTraining

WHOLE_TABLE = range(ROWS)
ROW_BYTES = 12


@pytest.mark.parametrize("chunk_bytes", [1, ROW_BYTES, 7 * ROW_BYTES, ROWS * ROW_BYTES, 1 << 20])
def test_rows_are_exact_whatever_the_size_of_a_chunk(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_values, "CHUNK_BYTES", chunk_bytes)
    training = SmallTraining(tmp_path)
    for ids in ([3, 4, 5], [0, ROWS - 1], [4], WHOLE_TABLE, [7, 9, 30]):
        training.write(ids)
        training.trainer.step()
        training.save()
    training.close()
    resumed = SmallTraining(tmp_path, seed=9)
    resumed.close()
    assert resumed.resumed is not None
    assert resumed.values() == training.values()


@contextmanager
def files_that_may_be_opened(count: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(file.name) for file in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_chain_may_have_more_files_than_a_process_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_values, "OPEN_FILES", 4)
    training = SmallTraining(tmp_path)
    for _ in range(40):
        training.train()
        training.save()
    training.close()
    with files_that_may_be_opened(30):
        resumed = SmallTraining(tmp_path, seed=9)
        resumed.close()
        variables = {"table": tf.Variable(tf.zeros((ROWS, 3)))}
        hio.load_vars(variables, tmp_path, ["table"])
    assert resumed.values() == training.values()
    assert values_of(variables) == {"table": training.values()["table"]}


def test_file_that_becomes_shorter_after_it_was_verified_is_damaged(tmp_path: Path) -> None:
    training = SmallTraining(tmp_path)
    (table,) = training.trainer.trackers.variables.tables
    training.close()
    point = find_resume_point(tmp_path, Scanner(tmp_path).scan())
    assert point is not None
    with ResumeReader(tmp_path, point) as reader:
        reader.row_values(table.values)
        (data,) = (file.name for file in point.full.files if file.role == names.ROLE_SERVING)
        (tmp_path / data).write_bytes(b"")
        with pytest.raises(DamagedError, match="became shorter"):
            reader.row_values(table.values)
        (tmp_path / data).unlink()
        with pytest.raises(DamagedError, match="cannot be read: No such file"):
            reader.row_values(table.values)


def test_first_damage_in_the_order_of_commits_is_the_one_that_counts(tmp_path: Path) -> None:
    training = SmallTraining(tmp_path)
    for _ in range(4):
        training.train()
        training.save()
    training.close()
    full, *deltas = Scanner(tmp_path).scan().manifests
    assert first_damage(tmp_path, (full, *deltas)) is None
    for manifest in (deltas[3], deltas[1]):
        name = next(file.name for file in manifest.files if file.role == names.ROLE_TRAINING)
        (directory_of(tmp_path, Kind.DELTA) / name).unlink()
    found = first_damage(tmp_path, (full, *deltas))
    assert found is not None
    assert found[0] == deltas[1]
