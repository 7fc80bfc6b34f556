"""Keeps one model in memory up to date with what a trainer writes, and answers predictions with it.

`Loader` is all that a server needs, or `StaticLoader` where there is no chain; what they raise is in hotdelta.errors.
"""

from hotdelta.sanity_limits import SanityLimits, SanitySettings
from loader.checks.checks import Checks
from loader.checks.kept_statistics import read_statistics
from loader.exports.static_loader import StaticLoader
from loader.follow.hold_back import Ahead, HoldBack
from loader.lag import Lag
from loader.loader import Clocks, Companion, Loader
from loader.model.served import Version
from loader.settings import LoaderSettings
from loader.status import LoaderStatus, Quarantined, State

__all__ = [
    "Ahead",
    "Checks",
    "Clocks",
    "Companion",
    "HoldBack",
    "Lag",
    "Loader",
    "LoaderSettings",
    "LoaderStatus",
    "Quarantined",
    "SanityLimits",
    "SanitySettings",
    "State",
    "StaticLoader",
    "Version",
    "read_statistics",
]
