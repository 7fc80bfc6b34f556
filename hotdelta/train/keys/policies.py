"""Which keys go: plain values that decide. Never uses TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from hotdelta.errors import ConfigurationError
from hotdelta.train.tables.key_upkeep import UNKNOWN, Moment

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LEAST = ("last_touch", "count")


@dataclass(frozen=True, slots=True)
class Examined:
    """What is known of some keys, an element for each: how often they were trained, when last, and 0.5 * sum(w^2)."""

    counts: Integers
    steps: Integers
    seconds: Integers
    half_squares: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class UntouchedSteps:
    """Goes: what was not trained for more than so many steps."""

    steps: int

    def __post_init__(self) -> None:
        _require_whole("UntouchedSteps", self.steps)

    def goes(self, keys: Examined, now: Moment) -> Flags:
        return np.asarray((keys.steps != UNKNOWN) & (now.step - keys.steps > self.steps))


@dataclass(frozen=True, slots=True)
class UntouchedSeconds:
    """Goes: what was not trained for more than so many seconds of event time, which training must tell."""

    seconds: int

    def __post_init__(self) -> None:
        _require_whole("UntouchedSeconds", self.seconds)

    def goes(self, keys: Examined, now: Moment) -> Flags:
        is_known = (keys.seconds != UNKNOWN) & (now.second != UNKNOWN)
        return np.asarray(is_known & (now.second - keys.seconds > self.seconds))


@dataclass(frozen=True, slots=True)
class SmallRows:
    """Goes: a row of which 0.5 * sum(w^2) is less than a limit."""

    limit: float

    def __post_init__(self) -> None:
        if not _is_number(self.limit) or not self.limit > 0:
            raise ConfigurationError(
                f"SmallRows is given {self.limit!r}", hint="give a limit above 0 for 0.5 * sum(w^2) of a row"
            )

    def goes(self, keys: Examined, _now: Moment) -> Flags:
        return np.asarray(keys.half_squares < self.limit)


@dataclass(frozen=True, slots=True)
class MostKeys:
    """Go: when there are more than so many keys, those that were trained least recently, or least often."""

    keys: int
    least: str = "last_touch"

    def __post_init__(self) -> None:
        _require_whole("MostKeys", self.keys)
        if self.least not in LEAST:
            raise ConfigurationError(f"least is {self.least!r}", hint=f"say one of {', '.join(LEAST)}")

    def goes(self, keys: Examined, _now: Moment) -> Flags:
        return np.zeros(len(keys.steps), np.bool_)

    def excess(self, live: int) -> int:
        return max(0, live - self.keys)

    def worst(self, keys: Examined, among: Flags, count: int) -> Integers:
        """The places of the `count` least used ones, or of all there are; the earlier place goes first."""
        used = keys.counts if self.least == "count" else keys.steps
        places = np.flatnonzero(among)
        # What was trained never goes before what was; of equal ones, the order of places is the same in every run.
        order = np.argsort(used[places], kind="stable")
        return np.asarray(places[order[:count]], np.int64)


EvictionPolicy = UntouchedSteps | UntouchedSeconds | SmallRows | MostKeys


@dataclass(frozen=True, slots=True)
class Eviction:
    """Policies that hold together: a key goes when one of them says so."""

    policies: tuple[EvictionPolicy, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Eviction:
        """`given`: None, a policy, or several, also as `as_config` gives them. Raises ConfigurationError."""
        several = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
        policies = tuple(_from_config(each) if isinstance(each, Mapping) else each for each in several)
        for policy in policies:
            if not isinstance(policy, EvictionPolicy):
                raise ConfigurationError(
                    f"eviction is {policy!r}",
                    hint="give UntouchedSteps, UntouchedSeconds, SmallRows or MostKeys of hotdelta.train, or several",
                )
        kinds = [type(policy).__name__ for policy in policies]
        twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"eviction has {twice} twice", hint="give one policy of each kind")
        return cls(policies)

    def as_config(self) -> list[dict[str, Any]] | None:
        """As JSON holds it."""
        return [config_of(policy) for policy in self.policies] or None

    def __bool__(self) -> bool:
        return bool(self.policies)

    @property
    def needs_counts(self) -> bool:
        return any(isinstance(policy, MostKeys) and policy.least == "count" for policy in self.policies)

    @property
    def needs_rows(self) -> bool:
        return any(isinstance(policy, SmallRows) for policy in self.policies)

    @property
    def needs_event_times(self) -> bool:
        return any(isinstance(policy, UntouchedSeconds) for policy in self.policies)

    def excess(self, live: int) -> int:
        """How many of the keys that are live now are too many."""
        return max(
            (policy.excess(live) for policy in self.policies if isinstance(policy, MostKeys)), default=0
        )

    def decide(self, keys: Examined, now: Moment, *, live: int) -> Flags:
        """Which of the examined keys go. `live`: how many keys the table has."""
        goes = np.zeros(len(keys.steps), np.bool_)
        for policy in self.policies:
            goes |= policy.goes(keys, now)
        for policy in self.policies:
            if isinstance(policy, MostKeys):
                count = policy.excess(live - int(np.count_nonzero(goes)))
                goes[policy.worst(keys, ~goes, count)] = True
        return goes


NO_EVICTION = Eviction()


def config_of(policy: EvictionPolicy) -> dict[str, Any]:
    """As JSON holds it."""
    return {"policy": type(policy).__name__, **asdict(policy)}


def _from_config(config: Mapping[str, Any]) -> Any:
    kinds = {kind.__name__: kind for kind in get_args(EvictionPolicy)}
    fields = {name: value for name, value in config.items() if name != "policy"}
    try:
        return kinds[config["policy"]](**fields)
    except (KeyError, TypeError):
        return dict(config)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_whole(name: str, value: Any, *, most: int | None = None) -> None:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < 1 or (most is not None and value > most):
        up_to = "" if most is None else f", up to {most:,}"
        raise ConfigurationError(f"{name} is given {value!r}", hint=f"give a whole number above 0{up_to}")
