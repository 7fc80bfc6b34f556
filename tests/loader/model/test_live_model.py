"""One model in memory: what it refuses, what it leaves untouched, and that every change can be undone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import BundleReader, Kind, Position
from hotdelta.chain.format import names
from hotdelta.errors import ApplyError, DamagedError, RequestError
from hotdelta.logs import telling_progress
from hotdelta.signatures import METADATA_FILE
from loader.files.commit_files import VerifiedFiles, stamp, verify_files
from loader.files.delta_in_memory import DeltaFiles
from loader.model.full_diff import compare_full, staged_difference
from loader.model.full_filling import fill_model
from loader.model.live_model import LiveModel
from tests.loader.step_model import ROWS, SIGNATURE, Trainer, find_commit, serving_file

pytestmark = pytest.mark.optimized


@pytest.fixture
def model(root: Path) -> Iterator[LiveModel]:
    model = LiveModel.load(root / "export" / "1")
    yield model
    model.close()


@pytest.fixture(scope="module")
def untouched(prepared_root: Path) -> Iterator[LiveModel]:
    """For tests that change nothing."""
    model = LiveModel.load(prepared_root / "export" / "1")
    yield model
    model.close()


@pytest.fixture
def delta(root: Path) -> Position:
    """A delta after the state of the export."""
    trainer = Trainer(root / "run")
    position = trainer.train([2, 3])
    trainer.close()
    return position


def open_delta(root: Path, position: Position) -> DeltaFiles:
    with DeltaFiles(root / "run", find_commit(root / "run", position)) as files:
        files.load()
    return files


def values(model: LiveModel) -> dict[str, bytes]:
    outputs = model.predict(SIGNATURE, {"ids": np.arange(ROWS)})
    return {name: value.tobytes() for name, value in outputs.items()}


def test_preimage_leads_back_bit_for_bit(root: Path, model: LiveModel, delta: Position) -> None:
    before, node, step = values(model), model.node, model.step
    files = open_delta(root, delta)
    model.stage_rows(files.update(model.metadata.schema))
    assert values(model) == before
    preimage = model.preimage()
    model.apply()
    assert values(model) != before
    assert model.node == files.manifest.node
    model.stage_rows(preimage)
    model.apply()
    assert (values(model), model.node, model.step) == (before, node, step)


def test_what_was_verified_is_staged_whatever_becomes_of_the_files(
    root: Path, model: LiveModel, delta: Position
) -> None:
    files = open_delta(root, delta)
    expected = {name: array.copy() for name, array in files.update(model.metadata.schema).items()}
    path = serving_file(root / "run", files.manifest)
    path.write_bytes(b"x" * path.stat().st_size)
    files.require_digests()
    for name, array in files.update(model.metadata.schema).items():
        np.testing.assert_array_equal(array, expected[name])
    with pytest.raises(DamagedError, match="does not have the digest"):
        open_delta(root, delta).require_digests()


def test_delta_of_another_parent_is_refused(root: Path, model: LiveModel, delta: Position) -> None:
    trainer = Trainer(root / "run")
    later = trainer.train([4])
    trainer.close()
    before = values(model)
    with pytest.raises(ApplyError, match="does not follow"):
        model.stage_rows(open_delta(root, later).update(model.metadata.schema))
    assert values(model) == before


def train_a_full(root: Path) -> tuple[VerifiedFiles, dict[str, bytes]]:
    """A full that differs from the export in rows 2, 3 and 60, and what it holds."""
    trainer = Trainer(root / "run")
    trainer.train([2, 3])
    full = verify_files(root / "run", find_commit(root / "run", trainer.train_full([60]), Kind.FULL))
    trainer.close()
    return full, {name: getattr(trainer.model, name).numpy().tobytes() for name in ("users", "items", "bias")}


def test_full_is_taken_as_the_rows_that_differ(root: Path, model: LiveModel) -> None:
    full, expected = train_a_full(root)
    difference = compare_full(model, full, max_bytes=3 * (16 + 8), slice_bytes=64)
    assert difference is not None
    found = {key: ids.tolist() for key, ids in difference.ids.items()}
    assert found == {"users": [2, 3, 60], "items": [2, 3, 60]}
    model.stage_rows(staged_difference(model, full.manifest, difference))
    model.apply()
    assert values(model) == expected
    assert (model.node, model.step) == (full.manifest.node, full.manifest.step)


def test_what_differs_in_more_than_the_budget_is_not_kept(root: Path, model: LiveModel) -> None:
    full, before = train_a_full(root)[0], values(model)
    assert compare_full(model, full, max_bytes=3 * (16 + 8) - 1, slice_bytes=64) is None
    assert values(model) == before


def test_full_fills_a_model_whatever_it_held(root: Path, model: LiveModel) -> None:
    full, expected = train_a_full(root)
    path = serving_file(root / "run", full.manifest)
    content = path.read_bytes()
    os.truncate(path, len(content) // 2)
    with pytest.raises(DamagedError, match="ends before"):
        fill_model(model, full, slice_bytes=64)
    assert (model.node, values(model) == expected) == (None, False), "it must not pass for a state"
    path.write_bytes(content)
    again = verify_files(root / "run", full.manifest)
    fill_model(model, again, slice_bytes=64)
    assert values(model) == expected
    assert (model.node, model.step) == (full.manifest.node, full.manifest.step)


def test_full_that_is_read_says_how_far_it_is(root: Path, model: LiveModel) -> None:
    full, told = train_a_full(root)[0], list[tuple[str, int, int]]()
    with telling_progress(lambda *step: told.append(step)):
        fill_model(model, full, slice_bytes=64)
    tables = sum(len(content) for name, content in values(model).items() if name != "bias")
    assert {phrase for phrase, _, _ in told} == {"reading bytes of a full"}
    assert [done for _, done, _ in told] == [*range(64, tables, 64), tables]
    assert {of for _, _, of in told} == {tables}


def test_full_that_changed_meanwhile_is_no_state(root: Path, model: LiveModel) -> None:
    full = train_a_full(root)[0]
    path = serving_file(root / "run", full.manifest)
    content, before = path.read_bytes(), stamp(path)
    while stamp(path) == before:
        # Until the clock of the file system has gone on: what is written twice in one tick has one time.
        path.write_bytes(content)
    with pytest.raises(DamagedError, match="changed after they were verified"):
        fill_model(model, full, slice_bytes=64)
    assert model.node is None


def test_rows_are_compared_by_bit_pattern(root: Path, model: LiveModel, delta: Position) -> None:
    trainer = Trainer(root / "run")
    odd = np.array([[np.nan, -0.0, 1e-45, 1.0]], np.float32)
    trainer.model.users.scatter_nd_update([[5]], odd)
    full = verify_files(root / "run", find_commit(root / "run", trainer.train_full([60]), Kind.FULL))
    trainer.close()
    difference = compare_full(model, full, max_bytes=2**20, slice_bytes=4096)
    assert difference is not None
    assert 5 in difference.ids["users"]
    model.stage_rows(staged_difference(model, full.manifest, difference))
    model.apply()
    again = compare_full(model, full, max_bytes=0, slice_bytes=4096)
    assert again is not None
    assert (again.num_rows, dict(again.values)) == (0, {})


def test_warm_up_changes_nothing(model: LiveModel) -> None:
    before = values(model), model.node, model.step
    model.warm_up()
    assert (values(model), model.node, model.step) == before


def test_restore_and_stage_signatures_are_not_predictions(untouched: LiveModel) -> None:
    with pytest.raises(RequestError, match="no signature 'apply_staged'"):
        untouched.predict("apply_staged", {})
    assert untouched.signatures == (SIGNATURE,)


@pytest.mark.parametrize(
    "feeds, message",
    [
        ({}, "'ids' is missing"),
        ({"ids": [1], "x": [1]}, "'x' is unknown"),
        ({"ids": [ROWS]}, "id 64 is not in table '(users|items)', which has 64 rows"),
        ({"ids": [-1]}, "id -1 is not in table '(users|items)', which has 64 rows"),
        ({"ids": [1.5]}, "holds float64, the signature wants int64"),
        ({"ids": ["a"]}, "the signature wants int64"),
        ({"ids": [True]}, "holds bool"),
        ({"ids": [None]}, "holds object"),
        ({"ids": [[1]]}, "shape \\[1, 1\\], the signature wants \\[any\\]"),
        ({"ids": [[1], [2, 3]]}, "ragged"),
        ({"ids": 3}, "shape \\[\\]"),
        ({"ids": [2**63]}, "do not fit"),
        ({"ids": [2**64]}, "int64"),
    ],
)
def test_wrong_inputs_are_refused_with_a_reason(
    untouched: LiveModel, feeds: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        untouched.predict(SIGNATURE, feeds)


def test_empty_batch_and_narrow_integers_are_taken(untouched: LiveModel) -> None:
    assert untouched.predict(SIGNATURE, {"ids": []})["users"].shape == (0, 4)
    assert untouched.predict(SIGNATURE, {"ids": np.array([3], np.int8)})["users"].shape == (1, 4)


def test_directory_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match="no export that can be served"):
        LiveModel.load(tmp_path)


def test_an_export_with_a_pipe_in_it_is_not_waited_for(root: Path) -> None:
    metadata = root / "export" / "1" / METADATA_FILE
    metadata.unlink()
    os.mkfifo(metadata)
    with pytest.raises(ApplyError, match="it is not a regular file"):
        LiveModel.load(root / "export" / "1")


def test_an_export_that_calls_its_inputs_otherwise_than_it_says_is_refused_when_it_is_loaded(
    root: Path,
) -> None:
    path = root / "export" / "1" / METADATA_FILE
    document = json.loads(path.read_text())
    del document["digest"]
    document["served"]["signatures"][SIGNATURE]["inputs"][0]["name"] = "Ids"
    path.write_text(json.dumps(document))
    with pytest.raises(ApplyError, match="has the inputs 'ids' in its graph, and 'Ids' by its metadata"):
        LiveModel.load(root / "export" / "1")


def test_training_tensors_are_not_in_the_export(root: Path) -> None:
    with BundleReader(root / "export" / "1" / "variables", "variables") as reader:
        assert not [name for name in reader.entries if names.TRAINER_STATE_TENSOR in name]
