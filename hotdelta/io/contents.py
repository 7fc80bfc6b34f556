"""What a directory holds, for people. Needs no TensorFlow."""

from __future__ import annotations

from pathlib import Path

from hotdelta.chain.scan import Listing
from hotdelta.io.saved_position import route
from hotdelta.io.saved_state import SavedState
from hotdelta.io.variable_class import format_variables
from hotdelta.logs import counted


def describe_directory(directory: Path, listing: Listing) -> str:
    """The variables at the newest position, with their classes. Raises ChainError."""
    manifests = route(directory, listing)
    with SavedState(directory, manifests) as saved:
        table = format_variables(saved.variables.values())
    newest, deltas = manifests[-1], len(manifests) - 1
    return f"position {newest.position}, step {newest.step}: a full and {counted(deltas, 'delta')}\n\n{table}"
