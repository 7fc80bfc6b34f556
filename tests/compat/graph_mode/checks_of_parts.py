"""Where the rows of tables in parts lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotdelta.compat.v1.graph.lookup_strategy import moved_rows
from hotdelta.errors import ModelMismatchError


def parts_of(rows: int, count: int) -> list[int]:
    """As tf.fixed_size_partitioner cuts: the first parts have one row more."""
    return [rows // count + (part < rows % count) for part in range(count)]


def ids_by_row(rows: int, count: int, strategy: str) -> np.ndarray:
    """The id of each row, found by looking every id up as tf.nn.embedding_lookup does."""
    parts = parts_of(rows, count)
    first = np.concatenate([[0], np.cumsum(parts)])
    found = np.empty(rows, np.int64)
    for each in range(rows):
        if strategy == "mod":
            found[first[each % count] + each // count] = each
        else:
            found[each] = each
    return found


@given(
    rows=st.integers(1, 60),
    counts=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    strategies=st.tuples(st.sampled_from(["mod", "div"]), st.sampled_from(["mod", "div"])),
)
def test_rows_are_moved_to_where_their_ids_are_looked_up(
    rows: int, counts: tuple[int, int], strategies: tuple[str, str]
) -> None:
    moved = moved_rows(
        "table",
        saved=parts_of(rows, counts[0]),
        saved_strategy=strategies[0],
        live=parts_of(rows, counts[1]),
        live_strategy=strategies[1],
    )
    saved = ids_by_row(rows, counts[0], strategies[0])
    live = saved if moved is None else saved[moved]
    assert live.tolist() == ids_by_row(rows, counts[1], strategies[1]).tolist()


def test_rows_are_not_moved_by_a_guess() -> None:
    with pytest.raises(ModelMismatchError, match="4 parts and is built in 2"):
        moved_rows("table", saved=[8, 8, 7, 7], saved_strategy="", live=[15, 15], live_strategy="mod")
