"""Decides whether the values of an update may be served. Pure: figures and limits in, a complaint or nothing out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from hotdelta.chain import TableRecord, Tracking
from hotdelta.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SanityLimits:
    """What one variable may look like. Defaults refuse garbage and never ordinary training."""

    is_nonfinite_allowed: bool = False
    """Whether NaN and Inf are what the model is meant to hold."""
    max_abs: float = 1e6
    """No single value may be larger, from the first update on."""
    outlier_factor: float = 100.0
    """Row norms and changes of rows may be so many times the largest of recent updates."""
    quiet_norm: float = 100.0
    """A norm or a change up to this is no outlier, however quiet the updates before were (warm-up, zero rows)."""
    max_touched_share: float = 1.0
    """Share of the rows that one delta may touch; not looked at for tables whose rows are compared (changed)."""
    max_deleted_share: float = 0.5
    """Share of the rows that one delta may delete."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if math.isnan(value) or value < 0:
                raise ConfigurationError(f"sanity limit {setting.name} is {value}", hint="give 0 or more")


@dataclass(frozen=True, slots=True)
class SanitySettings:
    """Limits for tables, for all other variables (statistics of raw features may be huge), and for some by key."""

    tables: SanityLimits = field(default_factory=SanityLimits)
    others: SanityLimits = field(default_factory=lambda: SanityLimits(max_abs=1e30))
    by_key: Mapping[str, SanityLimits] = field(default_factory=dict)
    min_updates: int = 20
    """Outliers are looked for once a variable was updated so often; until then the absolute limits stand alone."""

    def limits_of(self, key: str, *, is_table: bool) -> SanityLimits:
        return self.by_key.get(key) or (self.tables if is_table else self.others)


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of the new rows of one variable; `max_change` is the largest norm of new minus old."""

    nonfinite: int = 0
    max_abs: float = 0.0
    max_norm: float = 0.0
    max_change: float = 0.0


@dataclass(frozen=True, slots=True)
class Usual:
    """The largest figures of recent accepted updates of one variable."""

    max_norm: float
    max_change: float


def judge_values(figures: Figures, limits: SanityLimits, usual: Usual | None) -> str:
    """What is wrong, or nothing. `usual` is None while there are too few earlier updates."""
    if figures.nonfinite and not limits.is_nonfinite_allowed:
        return f"{figures.nonfinite} values are NaN or infinite"
    if figures.max_abs > limits.max_abs:
        return f"a value of {figures.max_abs:.3g} is larger than {limits.max_abs:.3g}"
    if usual is None:
        return ""
    return _judge_outlier("norm of a row", figures.max_norm, usual.max_norm, limits) or _judge_outlier(
        "change of a row", figures.max_change, usual.max_change, limits
    )


def _judge_outlier(what: str, value: float, usual: float, limits: SanityLimits) -> str:
    if value <= max(limits.quiet_norm, limits.outlier_factor * usual):
        return ""
    return (
        f"the largest {what}, {value:.3g}, is more than {limits.outlier_factor:g} times the usual {usual:.3g}"
    )


def judge_shares(record: TableRecord, limits: SanityLimits) -> str:
    """What is wrong with how many rows of a table a delta touches or deletes, or nothing."""
    rows = record.shape[0]
    if record.tracking is Tracking.TOUCHED and record.rows_changed > limits.max_touched_share * rows:
        share = record.rows_changed / rows
        return f"{share:.1%} of its rows are touched, more than {limits.max_touched_share:.1%}"
    if record.rows_deleted > limits.max_deleted_share * rows:
        share = record.rows_deleted / rows
        return f"{share:.1%} of its rows are deleted, more than {limits.max_deleted_share:.1%}"
    return ""
