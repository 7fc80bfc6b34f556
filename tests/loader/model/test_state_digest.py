"""The digest of a model is the same however it came to its state, and another one when a single bit differs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import Manifest, Node, Position
from hotdelta.chain.format import names
from loader.checks.checks import Checks
from loader.files.fed_update import FedUpdate, empty_update
from loader.lag import Stopwatch
from loader.model import state_digest
from loader.model.delta_staging import DeltaStaging
from loader.model.full_diff import compare_full, staged_difference
from loader.model.full_filling import fill_model
from tests.chain.key_table_chain import BIAS, INDEX, ROWS, SCHEMA, KeyTableChain
from tests.loader.array_model import ArrayModel

pytestmark = pytest.mark.I1

# A table without keys beside the one with keys, in some slices of a few rows.
SLICE_BYTES = 200
NODE = Node(Position(1, 1), "a" * 32)
TABLES = replace(
    SCHEMA, variables=(replace(SCHEMA.variables[0], shape=(40, 4)), SCHEMA.variables[3]), key_tables=()
)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_digest, "SLICE_BYTES", SLICE_BYTES)


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


def filled(chain: KeyTableChain, full: Manifest | None = None) -> ArrayModel:
    model = ArrayModel(SCHEMA)
    files = Checks().open_full(chain.run_dir, full or chain.manifests[-1], SCHEMA)
    fill_model(model.live, files, slice_bytes=SLICE_BYTES)
    return model


def digest_of(model: ArrayModel) -> str:
    """When all is counted."""
    while model.digest.advance(model.live):
        pass
    seen = model.digest.seen
    assert seen is not None
    assert seen.node == model.node
    return str(seen)


def counted_anew(model: ArrayModel) -> str:
    again = ArrayModel(model.metadata.schema, model.held)
    again.values = {key: np.array(value) for key, value in model.values.items()}
    return digest_of(again)


def apply(model: ArrayModel, chain: KeyTableChain, delta: Manifest, staging: DeltaStaging) -> FedUpdate:
    staged = staging.stage(model.live, chain.run_dir, delta, Stopwatch(time.monotonic))
    model.apply()
    return staged.preimage


def test_the_way_by_deltas_and_the_way_by_a_full_have_one_digest(
    chain: KeyTableChain, staging: DeltaStaging
) -> None:
    by_deltas = filled(chain)
    seen = {digest_of(by_deltas)}
    for at in range(4):
        apply(by_deltas, chain, chain.delta(range(at * 7, at * 60, 3), 2.0 + at), staging)
        seen.add(digest_of(by_deltas))
    assert len(seen) == 5
    assert digest_of(by_deltas) == digest_of(filled(chain, chain.full()))


def test_an_update_is_counted_without_going_through_the_tables_again(
    chain: KeyTableChain, staging: DeltaStaging
) -> None:
    model = filled(chain)
    digest_of(model)
    apply(model, chain, chain.delta([3, 5], 7.0), staging)
    assert not model.digest.advance(model.live), "one step is enough"
    assert digest_of(model) == counted_anew(model)


def test_updates_while_it_is_counted_are_in_it_once(chain: KeyTableChain, staging: DeltaStaging) -> None:
    model = filled(chain)
    for at in range(6):
        assert model.digest.advance(model.live)
        apply(model, chain, chain.delta(range(at * 5, 40 + at * 50, 3), 2.0 + at), staging)
        assert model.digest.seen is None
    assert digest_of(model) == counted_anew(model)


def test_what_was_counted_in_part_is_not_counted_twice(
    chain: KeyTableChain, staging: DeltaStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when there is no memory for the whole."""
    model = filled(chain)
    digest_of(model)
    apply(model, chain, chain.delta([3, 5], 7.0), staging)
    hashes = [state_digest._sum, state_digest._sum]

    def fail_later(ids: np.ndarray, rows: np.ndarray) -> int:
        if not hashes:
            raise MemoryError
        return hashes.pop()(ids, rows)

    with monkeypatch.context() as patched:
        patched.setattr(state_digest, "_sum", fail_later)
        with pytest.raises(MemoryError):
            model.digest.advance(model.live)
    assert digest_of(model) == counted_anew(model)


def test_what_was_put_back_at_once_was_never_there(chain: KeyTableChain, staging: DeltaStaging) -> None:
    """As after a probe that the update does not pass."""
    model = filled(chain)
    before = digest_of(model)
    preimage = apply(model, chain, chain.delta(range(60), 2.0), staging)
    model.stage_rows(preimage)
    model.apply()
    assert not model.digest.advance(model.live), "nothing has to be counted again"
    assert digest_of(model) == before


def test_after_an_undo_it_is_that_of_the_state_before(chain: KeyTableChain, staging: DeltaStaging) -> None:
    model = filled(chain)
    before, preimages = digest_of(model), []
    for at in range(3):
        preimages.append(apply(model, chain, chain.delta(range(at * 60), 2.0 + at), staging))
        digest_of(model)
    for preimage in reversed(preimages):
        model.stage_rows(preimage)
        model.apply()
    assert digest_of(model) == before


def test_a_full_of_an_earlier_state_takes_out_what_is_no_longer_in_use(chain: KeyTableChain) -> None:
    model, early = filled(chain), dict(chain.table.values)
    before = digest_of(model)
    chain.table.train(range(10, 400), 5.0)
    for values in (chain.table.values, early):
        chain.table.values = values
        full = chain.full()
        files = Checks().open_full(chain.run_dir, full, SCHEMA)
        difference = compare_full(model.live, files, max_bytes=1 << 30, slice_bytes=SLICE_BYTES)
        assert difference is not None
        model.stage_rows(staged_difference(model.live, full, difference))
        model.preimage()
        model.apply()
        assert digest_of(model) == counted_anew(model)
    assert digest_of(model) == before


def table_model() -> ArrayModel:
    model = ArrayModel(TABLES, NODE)
    model.values[ROWS] = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    return model


@pytest.mark.parametrize("key", [ROWS, BIAS])
def test_a_single_bit_shows(key: str) -> None:
    model, other = table_model(), table_model()
    other.values[key].reshape(-1)[-1:].view(np.uint32)[0] ^= 1
    assert digest_of(model) != digest_of(other)


def test_rows_that_have_changed_places_show() -> None:
    model, other = table_model(), table_model()
    other.values[ROWS][[3, 7]] = other.values[ROWS][[7, 3]]
    assert digest_of(model) != digest_of(other)


def test_reserve_that_was_never_written_does_not_count(chain: KeyTableChain) -> None:
    model = filled(chain)
    before = digest_of(model)
    for key in (ROWS, INDEX):
        model.values[key][len(chain.table.values[key]) :] = 3
    model.digest.forget()
    assert digest_of(model) == before


def test_much_that_is_noted_is_counted_before_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_digest, "MAX_PENDING_BYTES", 1000)
    model = table_model()
    digest_of(model)
    for step in range(50):
        write(model, {step % 40: float(step)}, bias=None)
        assert sum(len(update[ROWS + names.IDS_SUFFIX]) for update, _ in model.digest._pending) < 20
    assert digest_of(model) == counted_anew(model)


def write(model: ArrayModel, rows: dict[int, float], *, bias: float | None) -> None:
    held = model.held
    assert held is not None
    node = Node(Position(1, held.position.seq + 1), f"{held.position.seq:032x}")
    update = empty_update(TABLES, node=node, parent=held, step=0)
    update[ROWS + names.IDS_SUFFIX] = np.array(sorted(rows), np.int64)
    update[ROWS + names.ROWS_SUFFIX] = np.array([[rows[row]] * 4 for row in sorted(rows)], np.float32)
    update[ROWS + names.ROWS_SUFFIX] = update[ROWS + names.ROWS_SUFFIX].reshape(-1, 4)
    if bias is not None:
        update[BIAS + names.VALUE_SUFFIX] = np.full((1, 2), bias, np.float32)
    model.stage_rows(update)
    model.preimage()
    model.apply()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.just("advance"),
            st.tuples(
                st.dictionaries(st.integers(0, 39), st.floats(width=32), max_size=8),
                st.none() | st.floats(width=32),
            ),
        ),
        max_size=30,
    )
)
def test_whatever_comes_when_it_equals_one_that_is_counted_at_the_end(
    story: list[str | tuple[dict[int, float], float | None]],
) -> None:
    model = table_model()
    for chapter in story:
        if isinstance(chapter, str):
            model.digest.advance(model.live)
        else:
            write(model, chapter[0], bias=chapter[1])
    assert digest_of(model) == counted_anew(model)
