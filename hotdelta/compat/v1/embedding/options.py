"""`tf.EmbeddingVariableOption` and what it is made of: DeepRec's words, as what a table with keys is made with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.session_config import say_without_effect
from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.policies import (
    Admission,
    Eviction,
    SeenTimes,
    SeenTimesInFilter,
    SmallRows,
    UntouchedSteps,
)
from hotdelta.train.keys.table import MOST_ROWS

# What is reserved, as address space, when nobody says how many rows a variable may come to have.
DEFAULT_MAX_ROWS = 1 << 24
_MEMORY = ("DRAM", "HBM", "1", "0")


@dataclass(frozen=True)
class InitializerOption:
    """The first row of a key is row `key mod default_value_dim` of a matrix that `initializer` makes.

    `default_value_no_permission`: what is looked up while a filter keeps a key out.
    """

    initializer: Any = None
    default_value_dim: int = 4096
    default_value_no_permission: float = 0.0

    def __post_init__(self) -> None:
        if type(self.default_value_dim) is not int or not 1 <= self.default_value_dim <= 1 << 24:
            raise ConfigurationError(
                f"default_value_dim is {self.default_value_dim!r}",
                hint="give a whole number from 1 to 16777216",
            )


@dataclass(frozen=True)
class CounterFilter:
    """A key gets its row when it was seen `filter_freq` times; every occurrence in a batch counts."""

    filter_freq: int = 0

    def admission(self) -> Admission | None:
        return SeenTimes(self.filter_freq) if self.filter_freq > 1 else None


@dataclass(frozen=True)
class CBFFilter:
    """The same, counted in a filter that takes less memory and may count too much."""

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = -1.0
    counter_type: Any = tf.uint64

    def __post_init__(self) -> None:
        if self.max_element_size < 1 or not 0 < self.false_positive_probability < 1:
            raise ConfigurationError(
                f"CBFFilter is given {self.max_element_size} elements and a probability of "
                f"{self.false_positive_probability}",
                hint="say how many different keys there may be, and how often one may be counted too high: 0.01",
            )

    def admission(self) -> Admission | None:
        if self.filter_freq <= 1:
            return None
        return SeenTimesInFilter(
            self.filter_freq, keys=self.max_element_size, error=self.false_positive_probability
        )


@dataclass(frozen=True)
class GlobalStepEvict:
    """A key goes when it was not trained for more than so many steps."""

    steps_to_live: int | None = None


@dataclass(frozen=True)
class L2WeightEvict:
    """A key goes when 0.5 * sum(w^2) of its row is less than this."""

    l2_weight_threshold: float = -1.0


@dataclass(frozen=True)
class StorageOption:
    """Rows are in memory. All else is refused with ConfigurationError."""

    storage_type: Any = None
    storage_path: str | None = None
    storage_size: Any = None
    cache_strategy: Any = None
    layout: Any = None

    def __post_init__(self) -> None:
        kind = getattr(self.storage_type, "name", self.storage_type)
        if self.storage_path is not None or (kind is not None and str(kind) not in _MEMORY):
            raise ConfigurationError(
                f"storage_type={self.storage_type!r}: rows are kept in memory, and in no other storage",
                hint="leave StorageOption out; a policy of eviction bounds the memory",
            )
        for name in ("storage_size", "cache_strategy", "layout"):
            if getattr(self, name) is not None:
                say_without_effect(f"StorageOption({name}=...)")


@dataclass(frozen=True)
class EmbeddingVariableOption:
    """What becomes of keys. Of our own is `max_rows`: the most keys that a variable may have at a time.

    They are address space until they come.
    """

    ht_type: str = ""
    ht_partition_num: int = 1000
    evict_option: GlobalStepEvict | L2WeightEvict | None = None
    ckpt: Any = None
    filter_option: CounterFilter | CBFFilter | None = None
    storage_option: StorageOption = field(default_factory=StorageOption)
    init_option: InitializerOption = field(default_factory=InitializerOption)
    max_rows: int = DEFAULT_MAX_ROWS

    def __post_init__(self) -> None:
        if self.ckpt is not None:
            raise ConfigurationError(
                "CheckpointOption: a variable is restored with its graph, and not by itself",
                hint="load rows with tf.train.init_from_checkpoint, or leave it out",
            )
        if type(self.max_rows) is not int or not 1 <= self.max_rows <= MOST_ROWS:
            raise ConfigurationError(
                f"max_rows is {self.max_rows!r}", hint=f"give a whole number from 1 to {MOST_ROWS}"
            )
        self.eviction()
        self.admission()

    def eviction(self) -> Eviction:
        """Raises ConfigurationError."""
        match self.evict_option:
            case None:
                return Eviction()
            case GlobalStepEvict(steps_to_live=steps):
                return Eviction.of(UntouchedSteps(steps)) if steps else Eviction()
            case L2WeightEvict(l2_weight_threshold=limit):
                return Eviction.of(SmallRows(limit)) if limit > 0 else Eviction()
            case other:
                raise ConfigurationError(
                    f"evict_option is {other!r}",
                    hint="give tf.GlobalStepEvict or tf.L2WeightEvict, or neither",
                )

    def admission(self) -> Admission | None:
        """Raises ConfigurationError."""
        match self.filter_option:
            case None:
                return None
            case CounterFilter() | CBFFilter() as found:
                return found.admission()
            case other:
                raise ConfigurationError(
                    f"filter_option is {other!r}",
                    hint="give tf.CounterFilter or tf.CBFFilter, or leave it out",
                )
