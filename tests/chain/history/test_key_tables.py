"""A chain of a table with an open vocabulary is, at each position, the mapping from keys to rows that was trained."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain.format.key_index import Counts, find, items_of, mask_of, why_malformed
from hotdelta.chain.history.state import find_state
from hotdelta.chain.history.state_reader import StateReader
from tests.chain.key_table_chain import COUNTS, INDEX, ROWS, KeyTableChain

pytestmark = pytest.mark.I1

KEYS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 30) | st.integers(0, 60).map(lambda key: key << 20)
BATCHES = st.lists(
    st.tuples(st.lists(KEYS | st.sampled_from([-(2**63), 2**63 - 1]), max_size=60), st.booleans()), max_size=6
)


@settings(max_examples=40, deadline=None)
@given(batches=BATCHES)
def test_every_position_is_the_mapping_that_was_trained(batches: list[tuple[list[int], bool]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        chain = KeyTableChain(Path(directory))
        trained: list[dict[int, bytes]] = [{}]
        for number, (keys, is_full) in enumerate(batches):
            # A full starts anew: what it holds was trained after the last delta, and nothing leads there.
            if is_full:
                chain.table.train(keys, 1.0 + number)
                chain.full(appended=min(number, len(chain.table.values[INDEX]) - 1))
            else:
                chain.delta(keys, 1.0 + number)
            rows = chain.table.values[ROWS]
            trained.append({key: rows[1 + at].tobytes() for at, key in enumerate(chain.table.keys)})

        for manifest, expected in zip(chain.manifests, trained, strict=True):
            state = find_state(chain.run_dir, position=manifest.position)
            assert state is not None
            reader = StateReader(state)
            index, rows = reader.value(INDEX), reader.value(ROWS)
            counts = Counts.of(reader.value(COUNTS))
            assert counts == Counts(len(rows), len(index), mask_of(len(index)))
            assert why_malformed(np.arange(len(index)), index, counts) == ""
            keys_found, numbers = items_of(index)
            found = {
                int(key): rows[number].tobytes() for key, number in zip(keys_found, numbers, strict=True)
            }
            assert found == expected
            assert (find(index, keys_found) == numbers).all()
