"""A table with an open vocabulary on every way into a model: fulls, their differences, deltas alone and together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain.format import names
from hotdelta.errors import DamagedError
from loader.checks.checks import Checks
from loader.lag import Stopwatch
from loader.model.delta_staging import DeltaStaging
from loader.model.full_diff import compare_full, staged_difference
from loader.model.full_filling import fill_model
from tests.chain.key_table_chain import INDEX, ROWS, SCHEMA, Array, KeyTableChain
from tests.loader.array_model import ArrayModel

pytestmark = [pytest.mark.I1, pytest.mark.optimized]

SLICE_BYTES = 200


@pytest.fixture
def chain(tmp_path: Path) -> KeyTableChain:
    chain = KeyTableChain(tmp_path)
    chain.table.train(range(20), 1.0)
    chain.full()
    return chain


@pytest.fixture
def staging() -> Iterator[DeltaStaging]:
    staging = DeltaStaging(Checks())
    yield staging
    staging.close()


def filled(chain: KeyTableChain) -> ArrayModel:
    model = ArrayModel(SCHEMA)
    files = Checks().open_full(chain.run_dir, chain.manifests[-1], SCHEMA)
    fill_model(model.live, files, slice_bytes=SLICE_BYTES)
    return model


def require_trained(model: ArrayModel, values: dict[str, Array]) -> None:
    for key, value in values.items():
        assert model.values[key][: len(value)].tobytes() == value.tobytes()


def test_a_full_fills_the_rows_in_use_and_no_others(chain: KeyTableChain) -> None:
    model = filled(chain)
    require_trained(model, chain.table.values)
    assert model.node == chain.manifests[-1].node
    for key in (ROWS, INDEX):
        assert (model.values[key][len(chain.table.values[key]) :] == 77).all()


def test_a_full_whose_rows_came_while_it_was_written_is_read_like_any_other(chain: KeyTableChain) -> None:
    chain.table.train(range(300), 3.0)
    chain.full(appended=30)
    require_trained(filled(chain), chain.table.values)


@pytest.mark.parametrize("keys", [range(5), range(10, 400)], ids=["as large", "larger"])
def test_a_full_is_applied_as_the_rows_that_differ(chain: KeyTableChain, keys: range) -> None:
    model = filled(chain)
    rows_before = len(chain.table.values[ROWS])
    chain.table.train(keys, 5.0)
    files = Checks().open_full(chain.run_dir, chain.full(), SCHEMA)
    difference = compare_full(model.live, files, max_bytes=1 << 30, slice_bytes=SLICE_BYTES)
    assert difference is not None
    changed = len(keys)
    assert len(difference.ids[ROWS]) == changed
    assert (difference.ids[ROWS] >= rows_before).sum() == len(chain.table.values[ROWS]) - rows_before
    model.stage_rows(staged_difference(model.live, files.manifest, difference))
    model.apply()
    require_trained(model, chain.table.values)


def test_a_full_with_fewer_rows_takes_a_model_back(chain: KeyTableChain) -> None:
    """After a resume from an older position: what was in use beyond it is reserve again."""
    early = dict(chain.table.values)
    chain.table.train(range(10, 400), 5.0)
    chain.full()
    model = filled(chain)
    chain.table.values = early
    files = Checks().open_full(chain.run_dir, chain.full(), SCHEMA)
    difference = compare_full(model.live, files, max_bytes=1 << 30, slice_bytes=SLICE_BYTES)
    assert difference is not None
    model.stage_rows(staged_difference(model.live, files.manifest, difference))
    model.apply()
    require_trained(model, early)


def test_deltas_with_new_keys_are_applied_undone_and_applied_again(
    chain: KeyTableChain, staging: DeltaStaging
) -> None:
    model = filled(chain)
    for at in range(5):
        before = {key: np.array(value) for key, value in chain.table.values.items()}
        manifest = chain.delta(range(at * 7, at * 40, 3), 2.0 + at)
        staged = staging.stage(model.live, chain.run_dir, manifest, Stopwatch(time.monotonic))
        model.apply()
        require_trained(model, chain.table.values)
        model.stage_rows(staged.preimage)
        model.apply()
        require_trained(model, before)
        staging.stage(model.live, chain.run_dir, manifest, Stopwatch(time.monotonic))
        model.apply()
        require_trained(model, chain.table.values)


def test_deltas_with_new_keys_are_taken_together(chain: KeyTableChain, staging: DeltaStaging) -> None:
    model = filled(chain)
    deltas = [chain.delta(range(at * 7, at * 40, 3), 2.0 + at) for at in range(6)]
    taken = staging.stage_together(model.live, chain.run_dir, deltas)
    assert [manifest for manifest, _ in taken] == deltas
    model.apply()
    require_trained(model, chain.table.values)
    assert model.node == deltas[-1].node


@pytest.mark.I4
@pytest.mark.parametrize("key", [ROWS, INDEX])
def test_of_deltas_that_are_taken_together_those_before_a_bad_one_are_taken(
    chain: KeyTableChain, staging: DeltaStaging, key: str
) -> None:
    model = filled(chain)
    deltas = [chain.delta(range(at * 7, at * 40, 3), 2.0 + at) for at in range(3)]
    good = dict(chain.table.values)
    tensors = chain.table.train(range(1000, 1100), 9.0)
    for suffix in (names.IDS_SUFFIX, names.ROWS_SUFFIX):
        tensors[key + suffix] = tensors[key + suffix][:-1]
    bad = chain.link(tensors)
    later = chain.delta([1], 3.0)
    taken = staging.stage_together(model.live, chain.run_dir, [*deltas, bad, later])
    assert [manifest for manifest, _ in taken] == deltas
    model.apply()
    require_trained(model, good)
    held = {name: value.tobytes() for name, value in model.values.items()}
    with pytest.raises(DamagedError, match=f"1 rows of '{key}' come into use"):
        staging.stage(model.live, chain.run_dir, bad, Stopwatch(time.monotonic))
    assert staging.stage_together(model.live, chain.run_dir, [bad, later]) == []
    assert {name: value.tobytes() for name, value in model.values.items()} == held
