"""The values of a state are those that were trained, however the reading is cut into chunks, folds and slices."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import Kind
from hotdelta.chain.format import names
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_index import TensorType
from hotdelta.chain.history.state_reader import ReadingLimits, StateReader
from hotdelta.errors import DamagedError
from hotdelta.logs import telling_progress
from tests.chain.open_files import files_that_may_be_opened
from tests.chain.table_chain import BIAS, COLUMNS, SLOT, TABLE, Array, TableChain

ROWS = 40
ROW_BYTES = 4 * COLUMNS
NO_BYTES, ANY_BYTES = 0, 1 << 30


def state_of(chain: TableChain) -> ChainState:
    state = find_state(chain.run_dir)
    assert state is not None
    return state


def replayed(reader: StateReader, chain: TableChain, key: str) -> Array:
    """The full with every change written over it."""
    first = reader.state.full_alone()
    value = StateReader(first).value(key)
    if key != BIAS:
        value = np.concatenate([value, np.zeros_like(chain.values[key][len(value) :])])
    for ids, rows in reader.changes(key, owner=TABLE):
        if ids is None:
            value = rows
        else:
            assert (np.diff(ids) > 0).all()
            value[ids] = rows
    return value


def test_a_table_that_is_read_whole_says_how_far_it_is(tmp_path: Path) -> None:
    chain, told = TableChain(tmp_path, rows=ROWS), list[tuple[str, int, int]]()
    reader = StateReader(state_of(chain), limits=ReadingLimits(chunk_bytes=7 * ROW_BYTES))
    with telling_progress(lambda *step: told.append(step)):
        reader.value(TABLE)
    assert told == [("reading rows", min(7 * number, ROWS), ROWS) for number in range(1, 7)]


LIMITS = st.builds(
    ReadingLimits,
    chunk_bytes=st.sampled_from([1, ROW_BYTES, 7 * ROW_BYTES, ANY_BYTES]),
    small_bytes=st.sampled_from([NO_BYTES, 5 * (ROW_BYTES + 8), ANY_BYTES]),
    fold_bytes=st.sampled_from([1, 20 * ROW_BYTES, ANY_BYTES]),
    held_bytes=st.sampled_from([NO_BYTES, 20 * ROW_BYTES, ANY_BYTES]),
    open_files=st.sampled_from([1, 2, 64]),
)
SLICE_BYTES = st.sampled_from([1, 3 * ROW_BYTES, 7 * ROW_BYTES + 1, ANY_BYTES])


@settings(max_examples=25, deadline=None)
@given(
    deltas=st.lists(st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS), max_size=4),
    limits=LIMITS,
    slice_bytes=SLICE_BYTES,
)
def test_values_are_exact_whatever_the_limits(
    deltas: list[list[int]], limits: ReadingLimits, slice_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        chain = TableChain(Path(directory), rows=ROWS)
        for number, ids in enumerate(deltas):
            chain.delta(ids, bias=number if number % 2 else None)
        check_values(chain, limits, slice_bytes)


def check_values(
    chain: TableChain, limits: ReadingLimits, slice_bytes: int, state: ChainState | None = None
) -> None:
    reader = StateReader(state or state_of(chain), limits=limits)
    for key, owner in ((TABLE, ""), (SLOT, TABLE), (SLOT, ""), (BIAS, "")):
        expected = chain.values[key]
        assert reader.value(key, owner=owner).tobytes() == expected.tobytes()
        assert replayed(reader, chain, key).tobytes() == expected.tobytes()
        end = 0
        for first, rows in reader.slices(key, slice_bytes, owner=owner):
            assert first == end
            assert len(rows) == 1 or rows.nbytes <= slice_bytes
            assert rows.tobytes() == expected[first : first + len(rows)].tobytes()
            end += len(rows)
        assert end == len(expected)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(0, 9),
    deltas=st.lists(st.tuples(st.sets(st.integers(0, 8)), st.integers(0, 20), st.booleans()), max_size=5),
    limits=LIMITS,
    slice_bytes=SLICE_BYTES,
)
def test_growing_table_has_the_rows_of_the_newest_link(
    rows: int, deltas: list[tuple[set[int], int, bool]], limits: ReadingLimits, slice_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        chain = TableChain(Path(directory), rows=rows, reserved_rows=1000)
        for ids, new, is_full in deltas:
            old = [id_ for id_ in ids if id_ < len(chain.values[TABLE])]
            if is_full:
                chain.close_with_full(old, new=new)
            else:
                chain.delta(old, new=new)
        for state in (state_of(chain), whole_history(chain)):
            reader = StateReader(state)
            for key in (TABLE, SLOT):
                assert reader.type_of(key) == TensorType("float32", chain.values[key].shape)
            check_values(chain, limits, slice_bytes, state)


def whole_history(chain: TableChain) -> ChainState:
    """From the first full on, past all others."""
    deltas = [manifest for manifest in chain.manifests if manifest.kind is Kind.DELTA]
    return ChainState(chain.run_dir, chain.manifests[0], tuple(deltas))


def test_row_that_no_link_has_is_damage_however_it_is_read(tmp_path: Path) -> None:
    chain = TableChain(tmp_path, rows=5, reserved_rows=100)
    chain.delta([1], new=2)
    ids = np.array([0, 7, 9])
    chain.values.update({key: chain.random_rows(10) for key in (TABLE, SLOT)})
    rows = {key + names.ROWS_SUFFIX: chain.random_rows(3) for key in (TABLE, SLOT)}
    chain.link({TABLE + names.IDS_SUFFIX: ids, **rows})
    reader = StateReader(state_of(chain))
    for key in (TABLE, SLOT):
        for read in (reader.changes, reader.stored_rows, lambda key: reader.slices(key, ANY_BYTES)):
            with pytest.raises(DamagedError, match=f"of 1.3: no link up to it has row 8 of '{key}'"):
                list(read(key))
        with pytest.raises(DamagedError, match="has row 8"):
            reader.value(key)


def test_full_that_has_other_rows_than_its_manifest_says_is_damage(tmp_path: Path) -> None:
    chain = TableChain(tmp_path, rows=5, reserved_rows=100)
    (full,) = chain.manifests
    chain.delta([1], new=2)
    state = state_of(chain)
    record = replace(full.tables[TABLE], rows_in_use=4)
    state = replace(state, full=replace(full, tables={TABLE: record}))
    with pytest.raises(DamagedError, match="elsewhere"):
        StateReader(state).value(TABLE)


def test_variable_that_is_named_like_a_slot_of_a_growing_table_does_not_grow(tmp_path: Path) -> None:
    chain = TableChain(tmp_path, rows=2, reserved_rows=100)
    chain.link({f"{TABLE}/bias-value": np.ones((1, 2), np.float32)})
    chain.delta([], new=5)
    reader = StateReader(state_of(chain))
    assert reader.type_of(f"{TABLE}/bias") == TensorType("float32", (2,))
    assert reader.value(f"{TABLE}/bias").tolist() == [1, 1]


def test_slot_that_comes_in_the_middle_of_a_chain_grows_with_its_table(tmp_path: Path) -> None:
    chain = TableChain(tmp_path, rows=2, reserved_rows=100)
    chain.delta([0], new=1)
    slot = "optimizer/late/table"
    ids, late = np.arange(4), chain.random_rows(4)
    chain.values.update({key: np.concatenate([chain.values[key], late[:1]]) for key in (TABLE, SLOT)})
    own = {f"{key}-rows": late for key in (TABLE, SLOT, slot)}
    chain.link({"table-ids": ids, **own})
    reader = StateReader(state_of(chain))
    for owner in ("", TABLE):
        assert reader.type_of(slot, owner=owner) == TensorType("float32", (4, COLUMNS))
        assert reader.value(slot, owner=owner).tobytes() == late.tobytes()


def test_bits_of_bfloat16_come_as_uint16_or_as_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    chain = TableChain(tmp_path, dtype="bfloat16")
    chain.delta([3, 5])
    reader = StateReader(state_of(chain))

    assert reader.type_of(TABLE) == TensorType("bfloat16", (ROWS, COLUMNS))
    assert reader.value(TABLE).dtype == np.uint16
    assert reader.value(TABLE, dtype=np.float16).dtype == np.float16
    assert reader.value(TABLE).tobytes() == chain.values[TABLE].tobytes()
    ((_, rows),) = reader.slices(TABLE, ANY_BYTES, dtype=np.float16)
    assert rows.tobytes() == chain.values[TABLE].tobytes()


def test_variable_that_comes_in_the_middle_of_a_chain_is_read_from_there(tmp_path: Path) -> None:
    chain = TableChain(tmp_path)
    chain.delta([1])
    late, ids = chain.random_rows(ROWS), np.arange(ROWS)
    chain.link({"late-ids": ids, "late-rows": late, "later-value": np.ones((1, 4), np.float32)})
    some = chain.random_rows(2)
    chain.link({"late-ids": ids[3:5], "late-rows": some, "later-value": np.ones((0, 4), np.float32)})
    late[3:5] = some
    reader = StateReader(state_of(chain))

    assert reader.newest_keys() == {"late", "later"}
    assert reader.type_of("late") == TensorType("float32", late.shape)
    assert reader.value("late").tobytes() == late.tobytes()
    assert reader.type_of("later") == TensorType("float32", (4,))
    assert reader.value("later").tolist() == [1, 1, 1, 1]


def test_what_was_saved_whole_may_have_rows_later_and_the_other_way_round(tmp_path: Path) -> None:
    chain = TableChain(tmp_path)
    whole = chain.random_rows(ROWS)
    chain.delta([0, 7])
    chain.link({TABLE + names.VALUE_SUFFIX: whole[None]})
    reader = StateReader(state_of(chain))
    assert reader.value(TABLE).tobytes() == whole.tobytes()
    assert replayed(reader, chain, TABLE).tobytes() == whole.tobytes()

    chain.values[TABLE] = whole
    chain.delta([7, 9])
    reader = StateReader(state_of(chain))
    assert reader.value(TABLE).tobytes() == chain.values[TABLE].tobytes()
    assert replayed(reader, chain, TABLE).tobytes() == chain.values[TABLE].tobytes()


def test_ids_need_not_be_sorted(tmp_path: Path) -> None:
    chain = TableChain(tmp_path)
    rows = chain.random_rows(3)
    chain.link({TABLE + names.IDS_SUFFIX: np.array([9, 2, 5]), TABLE + names.ROWS_SUFFIX: rows})
    chain.values[TABLE][[9, 2, 5]] = rows
    for small_bytes in (NO_BYTES, ANY_BYTES):
        reader = StateReader(state_of(chain), limits=ReadingLimits(small_bytes=small_bytes))
        assert reader.value(TABLE).tobytes() == chain.values[TABLE].tobytes()


@pytest.mark.parametrize(
    "tensors, reason",
    [
        ({"table-ids": np.array([ROWS]), "table-rows": np.ones((1, COLUMNS), np.float32)}, "outside"),
        ({"table-ids": np.array([-1]), "table-rows": np.ones((1, COLUMNS), np.float32)}, "outside"),
        ({"table-ids": np.array([1, 2]), "table-rows": np.ones((1, COLUMNS), np.float32)}, "ids of 'table'"),
        ({"table-ids": np.array([1]), "table-rows": np.ones((1, 2), np.float32)}, "rows of 'table'"),
        ({"table-rows": np.ones((1, COLUMNS), np.float32)}, "no ids"),
        ({"table-value": np.ones((1, 2), np.float32)}, "'table' is"),
    ],
)
def test_rows_that_do_not_fit_are_damage(tensors: dict[str, Array], reason: str, tmp_path: Path) -> None:
    chain = TableChain(tmp_path)
    chain.link(tensors)
    reader = StateReader(state_of(chain))

    with pytest.raises(DamagedError, match=reason):
        reader.value(TABLE)
    with pytest.raises(DamagedError, match=reason):
        list(reader.slices(TABLE, ROW_BYTES))


def test_variable_that_no_link_has_is_damage(tmp_path: Path) -> None:
    reader = StateReader(state_of(TableChain(tmp_path)))

    assert reader.type_of("nothing") is None
    assert reader.newest_tensor("nothing") is None
    with pytest.raises(DamagedError, match="no link has all of 'nothing'"):
        reader.value("nothing")


@pytest.mark.parametrize("small_bytes", [NO_BYTES, ANY_BYTES])
def test_file_that_becomes_shorter_after_it_was_verified_is_damaged(tmp_path: Path, small_bytes: int) -> None:
    chain = TableChain(tmp_path)
    delta = chain.delta(range(10))
    reader = StateReader(state_of(chain), limits=ReadingLimits(small_bytes=small_bytes))
    reader.value(TABLE)
    chain.path(delta, names.ROLE_SERVING).write_bytes(b"")
    with pytest.raises(DamagedError, match="became shorter"):
        reader.value(TABLE)
    chain.path(delta, names.ROLE_SERVING).unlink()
    with pytest.raises(DamagedError, match="cannot be read: No such file"):
        list(reader.slices(TABLE, ANY_BYTES))


@pytest.mark.parametrize("small_bytes", [NO_BYTES, ANY_BYTES])
def test_chain_may_have_more_files_than_a_process_may_open(tmp_path: Path, small_bytes: int) -> None:
    chain = TableChain(tmp_path)
    for number in range(60):
        chain.delta([number % ROWS, (7 * number + 1) % ROWS])
    limits = ReadingLimits(small_bytes=small_bytes, open_files=3, chunk_bytes=9 * ROW_BYTES)
    with files_that_may_be_opened(20):
        reader = StateReader(state_of(chain), limits=limits)
        value = reader.value(TABLE)
        slices = [rows for _, rows in reader.slices(TABLE, 5 * ROW_BYTES)]
        assert len(list(reader.stored_rows(SLOT, owner=TABLE))) == 61
    assert value.tobytes() == chain.values[TABLE].tobytes()
    assert np.concatenate(slices).tobytes() == chain.values[TABLE].tobytes()


def test_reader_holds_no_file_open_between_two_calls(tmp_path: Path) -> None:
    chain = TableChain(tmp_path)
    chain.delta([1])
    reader = StateReader(state_of(chain))
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader.value(TABLE)
    slices = reader.slices(TABLE, ROW_BYTES)
    next(slices)
    slices.close()  # type: ignore[attr-defined]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
