"""How far the values of an update may go before they are not served, and how an operator writes that down.

Limits only: loader measures and judges. Never imports TensorFlow, so that a command refuses a wrong limit at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from hotdelta.errors import ConfigurationError

WINDOW_UPDATES = 200
MIN_UPDATES = "min_updates"

_BOOLEANS = {"true": True, "false": False}


def _limit(default: float, about: str, *, low: float = 0.0, high: float = math.inf) -> Any:
    """A limit of which `about` is empty is accepted, and no help tells of it."""
    return field(default=default, metadata={"help": about, "bounds": (low, high)})


@dataclass(frozen=True, slots=True)
class SanityLimits:
    """What one variable may look like. Defaults refuse garbage and never ordinary training."""

    is_nonfinite_allowed: bool = _limit(False, "whether NaN and Inf are what the model is meant to hold")
    max_abs: float = _limit(1e6, "no single value may be larger, from the first update on")
    outlier_factor: float = _limit(
        100.0,
        "the norm of a row may be so many times the largest that may be served; the change of a row, and the share "
        "of touched rows, so many times the largest of recent updates",
        low=1.0,
    )
    quiet_norm: float = _limit(100.0, "a norm or a change up to this is no outlier (warm-up, rows of zeros)")
    quiet_touched_share: float = _limit(
        0.5, "a delta that touches up to this share of the rows is no outlier", high=1.0
    )
    max_touched_share: float = _limit(
        1.0,
        "no delta may touch a larger share of the rows; for tables tracked as touched, not as changed",
        high=1.0,
    )
    max_deleted_share: float = _limit(
        0.5, "no delta may delete a larger share of the keys of a table without a fixed vocabulary", high=1.0
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check(setting.name, getattr(self, setting.name), setting.metadata["bounds"])


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One limit that an operator sets: for all tables, or with a key for one variable, table or not."""

    key: str
    name: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """`NAME=VALUE` or `KEY:NAME=VALUE`. Raises ConfigurationError."""
        target, has_value, value = text.strip().rpartition("=")
        key, _, name = target.rpartition(":")
        if not has_value:
            raise ConfigurationError(f"{text!r} is no limit", hint="write NAME=VALUE or KEY:NAME=VALUE")
        if name not in LIMIT_NAMES:
            raise ConfigurationError(
                f"there is no limit {name!r}", hint=f"limits: {', '.join(sorted(LIMIT_NAMES))}"
            )
        if key and name == MIN_UPDATES:
            raise ConfigurationError(f"{MIN_UPDATES} is for all variables", hint="give it without a key")
        return cls(key, name, _parse_value(name, value))


@dataclass(frozen=True, slots=True)
class SanitySettings:
    """Limits for tables, for all other variables (statistics of raw features may be huge), and changes for some."""

    tables: SanityLimits = field(default_factory=SanityLimits)
    others: SanityLimits = field(default_factory=lambda: SanityLimits(max_abs=1e30))
    by_key: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is different for one variable; all else is as for the other tables or variables."""
    min_updates: int = field(
        default=20,
        metadata={
            "help": "outliers are looked for once a variable was updated so often",
            "bounds": (1, WINDOW_UPDATES),
        },
    )

    def __post_init__(self) -> None:
        _check(MIN_UPDATES, self.min_updates, (1, WINDOW_UPDATES))
        for changes in self.by_key.values():
            replace(self.tables, **changes)

    @classmethod
    def changed_by(cls, changes: Sequence[LimitChange]) -> Self:
        """The defaults with what an operator set; of two that set the same the later one counts."""
        by_key: dict[str, dict[str, Any]] = defaultdict(dict)
        for change in changes:
            by_key[change.key][change.name] = change.value
        general = by_key.pop("", {})
        min_updates = int(general.pop(MIN_UPDATES, cls().min_updates))
        return cls(tables=replace(SanityLimits(), **general), by_key=by_key, min_updates=min_updates)

    def limits_of(self, key: str, *, is_table: bool) -> SanityLimits:
        limits = self.tables if is_table else self.others
        return replace(limits, **self.by_key[key]) if key in self.by_key else limits


_SETTINGS = {setting.name: setting for setting in fields(SanityLimits)}
_SETTINGS[MIN_UPDATES] = next(setting for setting in fields(SanitySettings) if setting.name == MIN_UPDATES)
LIMIT_NAMES = frozenset(_SETTINGS)


def describe_limits() -> str:
    """One line for each limit: its name, its default, and what it is for."""
    lines = {
        f"{name}={_show(setting.default)}": setting.metadata["help"] for name, setting in _SETTINGS.items()
    }
    width = max(map(len, lines))
    return "\n".join(f"  {limit.ljust(width)}  {about}" for limit, about in lines.items())


def _parse_value(name: str, text: str) -> float:
    setting = _SETTINGS[name]
    if isinstance(setting.default, bool):
        if text not in _BOOLEANS:
            raise ConfigurationError(f"{name} is {text!r}", hint="write true or false")
        return _BOOLEANS[text]
    kind = int if isinstance(setting.default, int) else float
    try:
        value: float = kind(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigurationError(f"{name} is {text!r}, which is not {wanted}") from error
    _check(name, value, setting.metadata["bounds"])
    return value


def _check(name: str, value: float, bounds: tuple[float, float]) -> None:
    low, high = bounds
    if not low <= value <= high:
        wanted = f"{low:g} or more" if math.isinf(high) else f"a number from {low:g} to {high:g}"
        raise ConfigurationError(f"sanity limit {name} is {value:g}", hint=f"give {wanted}")


def _show(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
