"""A graph may grow after it was made ready for deltas, but not by what would then be missing in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hotdelta.compat.v1.graph.saved_variables import SavedVariable
from hotdelta.errors import ConfigurationError
from hotdelta.train.model.variables import ModelVariables


def refuse_new_variables(saved: Sequence[SavedVariable], known: ModelVariables) -> None:
    """Raises ConfigurationError: they would be in fulls only."""
    new = {item.key for item in saved} - {item.key for item in known.everything()}
    if new:
        raise ConfigurationError(
            f"{', '.join(sorted(new))}: not there when the graph was made ready for deltas",
            hint="build all variables, and give all to the Saver, before deltas are first saved or restored, or build "
            "a new graph",
        )


def refuse_new_writers(writers: Collection[str]) -> None:
    """Raises ConfigurationError: of tables whose rows are recorded. All else is compared, whoever writes to it."""
    if writers:
        raise ConfigurationError(
            f"{', '.join(sorted(writers))}: not there when the graph was made ready for deltas, and not recorded",
            hint="build everything before the first Session that saves or restores deltas, or build a new graph",
        )
