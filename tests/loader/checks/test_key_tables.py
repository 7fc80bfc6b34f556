"""An update whose keys lead nowhere is never applied, and rows that come into use are not compared with garbage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Manifest
from hotdelta.chain.format import names
from hotdelta.chain.format.key_index import PLACES, candidate_buckets
from hotdelta.errors import DamagedError, SanityError
from loader import SanitySettings
from loader.checks.checks import Checks
from loader.checks.key_tables import changes_of_keys, in_use_before, require_sound_delta
from loader.checks.sanity_gate import SanityGate
from loader.files.fed_update import FedUpdate
from loader.files.full_reader import FullReader
from loader.model.delta_folding import FoldedDeltas, is_plain
from tests.chain.key_table_chain import COUNTS, INDEX, ROWS, SCHEMA, Array, KeyTableChain
from tests.loader.array_model import ArrayModel

pytestmark = pytest.mark.I4

SPECS = {spec.key: spec for spec in SCHEMA.variables}


def model_of(chain: KeyTableChain) -> ArrayModel:
    """At the newest state."""
    model = ArrayModel(SCHEMA, chain.manifests[-1].node)
    for key, value in chain.table.values.items():
        model.values[key][: len(value)] = value
    return model


def before(model: ArrayModel, update: FedUpdate) -> FedUpdate:
    model.stage_rows(update)
    return model.preimage()


def read(chain: KeyTableChain, manifest: Manifest) -> FedUpdate:
    delta = Checks().open_delta(chain.run_dir, manifest, SCHEMA)
    delta.require_digests()
    return delta.update(SCHEMA)


def check(chain: KeyTableChain, manifest: Manifest, update: FedUpdate, replica: ArrayModel) -> None:
    preimage = before(replica, update)
    (in_use,) = in_use_before(SCHEMA, [update], preimage)
    moves = changes_of_keys(SCHEMA, update, preimage, in_use)
    require_sound_delta(chain.run_dir, manifest, SCHEMA, update, in_use, moves)


@pytest.fixture
def chain(tmp_path: Path) -> KeyTableChain:
    chain = KeyTableChain(tmp_path)
    chain.table.train(range(20), 1.0)
    chain.full()
    return chain


def test_deltas_of_a_growing_table_pass_and_lead_to_the_trained_table(chain: KeyTableChain) -> None:
    replica, gate = model_of(chain), SanityGate(SanitySettings(min_updates=2))
    for at in range(12):
        update = read(chain, manifest := chain.delta(range(at, at * 30, 7), 1.0 + at))
        check(chain, manifest, update, replica)
        gate.accept(gate.check_delta(manifest, SCHEMA, update, before(replica, update)))
        replica.apply()
    for key, value in chain.table.values.items():
        assert replica.values[key][: len(value)].tobytes() == value.tobytes()
    assert len(chain.table.values[ROWS]) > 100


def move_key(index: Array) -> None:
    """To a bucket where nobody looks for it."""
    keys = index[:, :PLACES][index[:, PLACES:] != 0]
    for key in keys.tolist():
        strange = set(range(len(index))) - set(candidate_buckets(np.array([key]), len(index))[0].tolist())
        if strange:
            index[min(strange), :PLACES] = key
            index[min(strange), PLACES:] = 0
            index[min(strange), PLACES] = 1
            return
    raise AssertionError("there are too few buckets")


def lead_outside(index: Array) -> None:
    index[:, PLACES:][index[:, PLACES:] == 3] = 1999


def repeat_key(index: Array) -> None:
    bucket = int((index[:, PLACES:] != 0).sum(axis=1).argmax())
    index[bucket, 1] = index[bucket, 0]


SPOILED: list[tuple[Callable[[Array], None], str]] = [
    (move_key, "where nobody looks for it"),
    (lead_outside, "has row 1999, and"),
    (repeat_key, "occurs twice"),
]


@pytest.mark.parametrize("spoil, reason", SPOILED, ids=["moved", "outside", "repeated"])
def test_full_whose_keys_lead_nowhere_is_refused(
    chain: KeyTableChain, spoil: Callable[[Array], None], reason: str
) -> None:
    index = chain.table.values[INDEX].copy()
    spoil(index)
    manifest = chain.full({INDEX: index})
    with pytest.raises(DamagedError, match=f"keys of 'users/rows' that lead nowhere: .*{reason}"):
        Checks().open_full(chain.run_dir, manifest, SCHEMA)


@pytest.mark.parametrize("spoil, reason", SPOILED, ids=["moved", "outside", "repeated"])
def test_delta_whose_keys_lead_nowhere_is_refused(
    chain: KeyTableChain, spoil: Callable[[Array], None], reason: str
) -> None:
    index = chain.table.values[INDEX].copy()
    spoil(index)
    replica = model_of(chain)
    tensors = chain.table.train([], 2.0)
    tensors[INDEX + names.IDS_SUFFIX] = np.arange(len(index))
    tensors[INDEX + names.ROWS_SUFFIX] = index
    manifest = chain.link(tensors)
    with pytest.raises(DamagedError, match=f"keys of 'users/rows' that lead nowhere: .*{reason}"):
        check(chain, manifest, read(chain, manifest), replica)


@pytest.mark.parametrize("key", [ROWS, INDEX])
def test_delta_without_a_row_that_comes_into_use_is_refused(chain: KeyTableChain, key: str) -> None:
    replica = model_of(chain)
    tensors = chain.table.train(range(200), 2.0)
    for suffix in (names.IDS_SUFFIX, names.ROWS_SUFFIX):
        tensors[key + suffix] = tensors[key + suffix][:-1]
    manifest = chain.link(tensors)
    with pytest.raises(DamagedError, match=f"1 rows of '{key}' come into use"):
        check(chain, manifest, read(chain, manifest), replica)


@pytest.mark.parametrize("counts", [[20, 8, 7], [21, 5, 3], [0, 8, 7]])
def test_counts_that_are_not_those_of_the_manifest_are_refused(
    chain: KeyTableChain, counts: list[int]
) -> None:
    manifest = chain.full({COUNTS: np.array(counts)})
    with pytest.raises(DamagedError, match="its counts are Counts"):
        Checks().open_full(chain.run_dir, manifest, SCHEMA)


def test_delta_with_fewer_rows_in_use_than_before_is_refused(chain: KeyTableChain) -> None:
    replica = model_of(chain)
    replica.values[COUNTS] = np.array([1500, 5, 7])
    manifest = chain.delta(range(30), 2.0)
    with pytest.raises(DamagedError, match="rows in use, and had 1500"):
        check(chain, manifest, read(chain, manifest), replica)


def test_full_is_read_with_the_rows_that_are_in_use(chain: KeyTableChain) -> None:
    values = chain.table.values
    files = Checks().open_full(chain.run_dir, chain.manifests[-1], SCHEMA)
    with FullReader(files) as full:
        for key in (ROWS, INDEX):
            slices = list(full.read_slices(SPECS[key], 100))
            assert np.concatenate([ids for ids, _ in slices]).tolist() == list(range(len(values[key])))
            assert np.concatenate([rows for _, rows in slices]).tobytes() == values[key].tobytes()
        assert full.read(SPECS[COUNTS]).tolist() == values[COUNTS].tolist()
    accepted = SanityGate().check_full(files, SCHEMA)
    assert accepted.figures[ROWS].max_abs == 1.0


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"rows_in_use": 7}, r"is float32\[21, 4\], not float32\[7, 4\]"),
        ({"rows_in_use": None}, "None rows of 'users/rows' in use, which grows"),
        ({"shape": (1999, 4)}, "the model wants"),
        ({"dtype": "float16"}, "the model wants"),
    ],
    ids=str,
)
def test_full_that_has_other_rows_than_its_manifest_says_is_refused(
    chain: KeyTableChain, changed: dict[str, Any], reason: str
) -> None:
    manifest = chain.manifests[-1]
    tables = {**manifest.tables, ROWS: replace(manifest.tables[ROWS], **changed)}
    with pytest.raises(DamagedError, match=reason):
        Checks().open_full(chain.run_dir, replace(manifest, tables=tables), SCHEMA)


def test_delta_of_a_table_that_does_not_grow_has_no_rows_in_use(chain: KeyTableChain) -> None:
    manifest = chain.delta([1], 3.0)
    fixed = replace(SCHEMA, key_tables=())
    with pytest.raises(DamagedError, match="21 rows of 'users/rows' in use, which does not grow"):
        Checks().open_delta(chain.run_dir, manifest, fixed)


def test_row_that_comes_into_use_is_judged_by_its_value_and_not_by_its_change(chain: KeyTableChain) -> None:
    """Until then there is garbage where it lies: here a number that would be the largest change ever seen."""
    replica, gate = model_of(chain), SanityGate(SanitySettings(min_updates=2))
    replica.values[ROWS][21:] = 1e30
    for at in range(4):
        manifest = chain.delta(range(at, 40 + 10 * at), 1.0 + at / 10)
        update = read(chain, manifest)
        accepted = gate.check_delta(manifest, SCHEMA, update, before(replica, update))
        assert accepted.figures[ROWS].max_change < 3
        gate.accept(accepted)
        replica.apply()

    manifest = chain.delta([9999], np.nan)
    update = read(chain, manifest)
    with pytest.raises(SanityError, match="NaN"):
        gate.check_delta(manifest, SCHEMA, update, before(replica, update))


def test_row_that_was_in_use_before_is_judged_by_its_change(chain: KeyTableChain) -> None:
    replica, gate = model_of(chain), SanityGate()
    for keys, value, change in (([50], 8.0, 0.0), ([50, 51], 2.0, 12.0), ([50, 51], 3.0, 2.0)):
        manifest = chain.delta(keys, value)
        update = read(chain, manifest)
        accepted = gate.check_delta(manifest, SCHEMA, update, before(replica, update))
        assert accepted.figures[ROWS].max_change == change
        replica.apply()


def test_shares_are_those_of_the_rows_in_use(chain: KeyTableChain) -> None:
    replica = model_of(chain)
    strict = SanityGate(SanitySettings(by_key={ROWS: {"max_touched_share": 0.5}}))
    manifest = chain.delta(range(20), 2.0)
    update = read(chain, manifest)
    with pytest.raises(SanityError, match=r"95.2% of its rows are touched, more than 50.0%"):
        strict.check_delta(manifest, SCHEMA, update, before(replica, update))
    accepted = SanityGate().check_delta(manifest, SCHEMA, update, before(replica, update))
    assert accepted.figures[ROWS].touched_share == 20 / 21


def test_folded_deltas_of_a_growing_table_are_judged_as_if_each_came_alone(chain: KeyTableChain) -> None:
    replica, at_once, gate = model_of(chain), model_of(chain), SanityGate()
    replica.values[ROWS][21:] = 1e30
    batches = [range(10), range(5, 40), range(30, 90), [1, 2], range(80, 300)]
    manifests = [chain.delta(keys, 1.0 + at) for at, keys in enumerate(batches)]
    updates = [read(chain, manifest) for manifest in manifests]
    assert all(is_plain(update, m, SCHEMA) for update, m in zip(updates, manifests, strict=True))
    folded = FoldedDeltas(manifests, updates, SCHEMA)
    preimage = before(replica, folded.update)
    in_use = in_use_before(SCHEMA, updates, preimage)
    moves = folded.moves(preimage, in_use)
    together = gate.check_deltas(manifests, SCHEMA, folded.stacked(preimage, in_use, moves))
    assert len(together) == len(manifests)

    cases = zip(manifests, updates, in_use, moves, together, strict=True)
    for manifest, update, used, moved, accepted in cases:
        (alone,) = in_use_before(SCHEMA, [update], before(replica, update))
        assert used == alone
        require_sound_delta(chain.run_dir, manifest, SCHEMA, update, used, moved)
        figures = gate.check_delta(manifest, SCHEMA, update, before(replica, update)).figures
        assert figures.keys() == accepted.figures.keys()
        for key, found in figures.items():
            assert accepted.figures[key].max_change == pytest.approx(found.max_change)
            assert accepted.figures[key].touched_share == found.touched_share
        replica.apply()
    at_once.stage_rows(folded.update)
    at_once.apply()
    for key, value in chain.table.values.items():
        assert replica.values[key][: len(value)].tobytes() == value.tobytes()
        assert at_once.values[key][: len(value)].tobytes() == value.tobytes()


def test_id_that_is_not_in_use_is_not_plain(chain: KeyTableChain) -> None:
    replica = model_of(chain)
    manifest = chain.delta([1], 2.0)
    update = dict(read(chain, manifest))
    assert is_plain(update, manifest, SCHEMA)
    update[ROWS + names.IDS_SUFFIX] = np.array([21])
    assert not is_plain(update, manifest, SCHEMA)
    with pytest.raises(DamagedError, match="outside the 21 in use"):
        check(chain, manifest, update, replica)
