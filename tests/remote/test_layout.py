"""Names in a store sort as what they name does, and can be read again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hotdelta.chain import Kind, Position
from hotdelta.chain.format.position import MAX_NUMBER
from hotdelta.remote import layout

_POSITIONS = st.builds(Position, st.integers(1, MAX_NUMBER), st.integers(1, MAX_NUMBER))


@given(st.lists(_POSITIONS), st.sampled_from(Kind))
def test_names_of_commits_sort_as_their_positions(positions: list[Position], kind: Kind) -> None:
    named = sorted(layout.log_name(kind, position) for position in positions)
    assert [layout.position_of(name) for name in named] == sorted(positions)
    assert all(name.startswith(layout.log_prefix(kind)) for name in named)


def test_other_names_have_no_position_and_no_run() -> None:
    for name in ("log/deltas/3.17", "log/deltas/0000000003-17", "log/deltas/0000000000-0000000001", ""):
        assert layout.position_of(name) is None
    assert layout.claimed_run(layout.claim_name(37)) == 37
    assert layout.claimed_run("claims/37") is None
