"""Decides whether the values of an update may be served. Pure: figures and limits in, a complaint or nothing out."""

from __future__ import annotations

from dataclasses import dataclass

from hotdelta.chain import TableRecord, Tracking
from hotdelta.logs import counted
from hotdelta.sanity_limits import SanityLimits


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of the new rows of one variable; `max_change` is the largest norm of new minus old."""

    nonfinite: int = 0
    max_abs: float = 0.0
    max_norm: float = 0.0
    max_change: float = 0.0
    touched_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Usual:
    """The largest figures of one variable: the norm of all that may be served, the others of recent updates."""

    max_norm: float
    max_change: float
    touched_share: float = 0.0


def judge_values(figures: Figures, limits: SanityLimits, usual: Usual | None, *, positions: int = 1) -> str:
    """What is wrong, or nothing. `usual` is None while there are too few earlier updates.

    An update that leads over several `positions` may change a row as far as so many updates may.
    """
    if figures.nonfinite and not limits.is_nonfinite_allowed:
        return f"NaN or infinite in {counted(figures.nonfinite, 'value')}"
    if figures.max_abs > limits.max_abs:
        return f"a value of {figures.max_abs:.3g} is larger than {limits.max_abs:.3g}"
    if usual is None:
        return ""
    return _judge_outlier("norm of a row", figures.max_norm, usual.max_norm, limits) or _judge_outlier(
        "change of a row", figures.max_change, usual.max_change, limits, positions
    )


def _judge_outlier(what: str, value: float, usual: float, limits: SanityLimits, times: int = 1) -> str:
    if value <= max(limits.quiet_norm, limits.outlier_factor * usual) * times:
        return ""
    return (
        f"the largest {what}, {value:.3g}, is more than {limits.outlier_factor:g} times the usual {usual:.3g}"
    )


def judge_shares(
    record: TableRecord, limits: SanityLimits, usual: Usual | None = None, *, positions: int = 1
) -> str:
    """What is wrong with how many rows of a table a delta touches or deletes, or nothing.

    One that leads over several `positions` may touch and delete as many as so many deltas may.
    Where the trainer compares rows (changed) any number may have changed: weight decay changes all of them.
    """
    touched, deleted = share_of_rows(record, record.rows_changed), share_of_keys(record)
    if deleted > (most_deleted := min(1.0, limits.max_deleted_share * positions)):
        return f"{deleted:.1%} of its keys are deleted, more than {most_deleted:.1%}"
    if record.tracking is not Tracking.TOUCHED:
        return ""
    if touched > (most_touched := min(1.0, limits.max_touched_share * positions)):
        return f"{touched:.1%} of its rows are touched, more than {most_touched:.1%}"
    unusual = limits.outlier_factor * usual.touched_share if usual is not None else 1.0
    if usual is None or touched <= max(limits.quiet_touched_share, unusual) * positions:
        return ""
    return (
        f"{touched:.1%} of its rows are touched, more than {limits.outlier_factor:g} times the usual "
        f"{usual.touched_share:.2%}"
    )


def share_of_rows(record: TableRecord, rows: int) -> float:
    """Of those in use: a growing table reserves more."""
    return rows / max(1, record.stored_shape[0])


def share_of_keys(record: TableRecord) -> float:
    """Which share of the keys of its parent a delta deletes."""
    if record.keys_live is None:
        return share_of_rows(record, record.rows_deleted)
    return record.rows_deleted / max(1, record.keys_live + record.rows_deleted - (record.keys_new or 0))
