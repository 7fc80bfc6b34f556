"""What a directory holds, for people. Needs no TensorFlow."""

from __future__ import annotations

from pathlib import Path

from hotdelta.chain.history.scan import Listing
from hotdelta.chain.history.state import peek_state
from hotdelta.errors import ChainError
from hotdelta.io.saved_state import SavedState
from hotdelta.io.variable_class import format_variables
from hotdelta.logs import counted


def describe_directory(directory: Path, listing: Listing) -> str:
    """The variables at the newest position, with their classes. Raises ChainError."""
    state = peek_state(directory, listing=listing)
    if state is None:
        raise ChainError(f"{directory} holds no full checkpoint that can be used")
    table = format_variables(SavedState(state).variables.values())
    newest, deltas = state.newest, counted(len(state.deltas), "delta")
    return f"position {newest.position}, step {newest.step}: a full and {deltas}\n\n{table}"
