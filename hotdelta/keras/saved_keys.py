"""Which variables a chain has, before it is verified: an optimizer may have to be built to be loaded."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hotdelta.chain.state import peek_state
from hotdelta.chain.state_reader import StateReader
from hotdelta.errors import ChainError


def peek_keys(run_dir: Path) -> Collection[str] | None:
    """The keys of the newest position. None when there is none, or it cannot be read: resuming says so."""
    try:
        state = peek_state(run_dir)
        return StateReader(state.newest_alone()).newest_keys() if state is not None else None
    except ChainError:
        return None
