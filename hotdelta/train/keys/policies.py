"""Which keys get rows, and which go: plain values that decide. Never uses TensorFlow."""

from __future__ import annotations

import functools
import math
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

# How often a key may have to be seen: counts are kept in 20 bits, and those of a filter in a byte.
MOST_TIMES = 1_000_000
MOST_TIMES_IN_FILTER = 255
MOST_KEYS_IN_FILTER = 10**10
# A filter has blocks of as many counters as a cache line has bytes; a key has up to so many of them, in one block.
FILTER_COLUMNS = 64
MOST_COUNTERS = 10


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


@dataclass(frozen=True, slots=True)
class SeenTimes:
    """Comes: a key that was seen so many times, counted exactly; every occurrence in a batch counts.

    What waits is forgotten when it was not seen for more than `forget_steps` steps; and when more than `most_waiting`
    keys wait (None: as many as the table may have rows), those that were not seen for longest.
    """

    times: int
    forget_steps: int | None = None
    most_waiting: int | None = None

    def __post_init__(self) -> None:
        _require_whole("SeenTimes", self.times, most=MOST_TIMES)
        for name in ("forget_steps", "most_waiting"):
            if getattr(self, name) is not None:
                _require_whole(f"{name} of SeenTimes", getattr(self, name))

    def forgetting(self, max_rows: int) -> Eviction:
        """Which of those that wait are forgotten."""
        steps = () if self.forget_steps is None else (UntouchedSteps(self.forget_steps),)
        return Eviction((*steps, MostKeys(self.most_waiting or max_rows)))


@dataclass(frozen=True, slots=True)
class SeenTimesInFilter:
    """Comes: a key that was seen so many times, counted in a counting Bloom filter of a fixed size.

    It never counts too little. Of `keys` different keys, a share of `error` at most finds the counters of others
    and is counted too high; for each `keys` new ones all counters are set back once, block by block.
    """

    times: int
    keys: int
    error: float = 0.01

    def __post_init__(self) -> None:
        _require_whole("SeenTimesInFilter", self.times, most=MOST_TIMES_IN_FILTER)
        _require_whole("keys of SeenTimesInFilter", self.keys, most=MOST_KEYS_IN_FILTER)
        if not _is_number(self.error) or not 1e-4 <= self.error <= 0.5:
            raise ConfigurationError(
                f"error of SeenTimesInFilter is {self.error!r}", hint="give a share from 0.0001 to 0.5"
            )

    @property
    def counters(self) -> int:
        """How many a key has."""
        return _best_filter(self.error)[0]

    @property
    def blocks(self) -> int:
        return math.ceil(self.keys / _best_filter(self.error)[1])

    @property
    def nbytes(self) -> int:
        """What it takes in memory and in every full."""
        return self.blocks * FILTER_COLUMNS


@dataclass(frozen=True, slots=True)
class Chance:
    """Comes: a key at each of its occurrences with this probability."""

    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_number(self.probability) or not 0 < self.probability <= 1:
            raise ConfigurationError(
                f"Chance is given {self.probability!r}", hint="give a probability above 0, up to 1"
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigurationError(f"seed of Chance is {self.seed!r}", hint="give a whole number")


Admission = SeenTimes | SeenTimesInFilter | Chance


def admission_of(given: Any) -> Admission | None:
    """`given`: None, a policy, or what `config_of` made of one. Raises ConfigurationError."""
    policy = _from_config(given, Admission) if isinstance(given, Mapping) else given
    if policy is not None and not isinstance(policy, Admission):
        raise ConfigurationError(
            f"admission is {policy!r}",
            hint="give SeenTimes, SeenTimesInFilter or Chance of hotdelta.train, or None",
        )
    return policy


@functools.cache
def _best_filter(error: float) -> tuple[int, float]:
    """How many counters a key gets, and how many keys a block takes, so that the filter is as small as can be."""
    return max(
        ((count, _keys_in_block(count, error)) for count in range(1, MOST_COUNTERS + 1)),
        key=lambda found: found[1],
    )


def _keys_in_block(counters: int, error: float) -> float:
    """The most keys, on average, with which a new one finds all of its counters in use with this probability only."""
    low, high = 0.0, float(FILTER_COLUMNS)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if filter_error(middle, counters) <= error else (low, middle)
    return low


def filter_error(keys_in_block: float, counters: int) -> float:
    """How likely a new key finds all of its counters in use: blocks have more or fewer keys by chance (Poisson)."""
    total, share = 0.0, math.exp(-keys_in_block)
    for keys, is_in_use in enumerate(_all_in_use(counters)):
        total += share * is_in_use
        share *= keys_in_block / (keys + 1)
    return total


@functools.cache
def _all_in_use(counters: int) -> tuple[float, ...]:
    """By the number of keys in a block: how likely so many draws of a counter all fall on one that is in use."""
    in_use = np.arange(FILTER_COLUMNS + 1) / FILTER_COLUMNS
    shares = (in_use == 0).astype(np.float64)
    found = []
    for _ in range(4 * FILTER_COLUMNS):
        found.append(float(shares @ in_use**counters))
        for _ in range(counters):
            more = shares * (1 - in_use)
            shares = shares * in_use
            shares[1:] += more[:-1]
    return tuple(found)


EvictionPolicy = UntouchedSteps | UntouchedSeconds | SmallRows | MostKeys


@dataclass(frozen=True, slots=True)
class Eviction:
    """Policies that hold together: a key goes when one of them says so."""

    policies: tuple[EvictionPolicy, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Eviction:
        """`given`: None, a policy, or several, also as `as_config` gives them. Raises ConfigurationError."""
        several = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
        policies = tuple(
            _from_config(each, EvictionPolicy) if isinstance(each, Mapping) else each for each in several
        )
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


def config_of(policy: EvictionPolicy | Admission) -> dict[str, Any]:
    """As JSON holds it."""
    return {"policy": type(policy).__name__, **asdict(policy)}


def _from_config(config: Mapping[str, Any], policies: Any) -> Any:
    kinds = {kind.__name__: kind for kind in get_args(policies)}
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
