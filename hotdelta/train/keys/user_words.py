"""What a user says of a table with keys, as what it is made with: initializers, defaults, keys of any dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.slice_key import can_be_sliced
from hotdelta.errors import ConfigurationError
from hotdelta.logs import counted
from hotdelta.train.keys.initial_rows import ConstantRows, KeyedRows, NormalRows, UniformRows
from hotdelta.train.keys.policies import Eviction, admission_of
from hotdelta.train.keys.table import MOST_ROWS, TableSettings

COMBINERS = ("sum", "mean", "sqrtn")

_NAMED: dict[str, KeyedRows] = {
    "zeros": ConstantRows(0.0),
    "ones": ConstantRows(1.0),
    "uniform": UniformRows(-0.05, 0.05),
    "random_uniform": UniformRows(-0.05, 0.05),
    "normal": NormalRows(0.0, 0.05),
    "random_normal": NormalRows(0.0, 0.05),
}


def settings_of(
    name: str,
    *,
    dim: Any,
    max_rows: Any,
    initializer: Any,
    default: Any,
    seed: Any,
    dtype: Any,
    eviction: Any = None,
    admission: Any = None,
) -> TableSettings:
    """Raises ConfigurationError for what no table can be made with."""
    width = _whole(f"dim of {name}", dim, most=1 << 20)
    return TableSettings(
        width=width,
        max_rows=_whole(f"max_rows of {name}", max_rows, most=MOST_ROWS),
        initial=keyed_rows(initializer, seed=_seed(seed)),
        default=_default(default, width),
        dtype=_dtype(name, dtype),
        eviction=Eviction.of(eviction),
        admission=admission_of(admission),
    )


def keyed_rows(initializer: Any, *, seed: int) -> KeyedRows:
    """The rows that an initializer of Keras makes, or one that is named like one, as a function of the key."""
    if isinstance(initializer, KeyedRows):
        return initializer
    if isinstance(initializer, str):
        found = _NAMED.get(initializer.lower())
        if found is None:
            raise _unknown(repr(initializer))
        return found if isinstance(found, ConstantRows) else _seeded(found, seed)
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    match type(initializer).__name__:
        case "Zeros":
            return ConstantRows(0.0)
        case "Ones":
            return ConstantRows(1.0)
        case "Constant" if np.ndim(config["value"]) == 0:
            return ConstantRows(float(config["value"]))
        case "RandomUniform":
            return UniformRows(float(config["minval"]), float(config["maxval"]), _seed_in(config, seed))
        case "RandomNormal":
            return NormalRows(float(config["mean"]), float(config["stddev"]), _seed_in(config, seed))
        case _:
            raise _unknown(type(initializer).__name__)


def as_keys(values: tf.Tensor) -> tf.Tensor:
    """Keys of 64 bits: whole numbers as they are, texts by farmhash64 (tf.raw_ops.Fingerprint)."""
    if values.dtype != tf.string:
        return tf.cast(values, tf.int64)
    digests = tf.raw_ops.Fingerprint(data=tf.reshape(values, [-1, 1]), method="farmhash64")
    return tf.reshape(tf.bitcast(digests, tf.int64), tf.shape(values))


def _dtype(name: str, dtype: Any) -> tf.DType:
    """A full holds a table that grew meanwhile in two slices."""
    found = tf.as_dtype(dtype)
    if not found.is_floating or not can_be_sliced(found.name):
        raise ConfigurationError(
            f"{name} is to hold {found.name}",
            hint="take float32, bfloat16 or float64; mixed precision has float32 rows",
        )
    return found


def _seeded(rows: KeyedRows, seed: int) -> KeyedRows:
    if isinstance(rows, UniformRows):
        return UniformRows(rows.low, rows.high, seed)
    return NormalRows(rows.mean, rows.deviation, seed) if isinstance(rows, NormalRows) else rows


def _seed_in(config: dict[str, Any], seed: int) -> int:
    """Keras draws a seed of its own for an initializer that was given none: another one in every process."""
    given = config.get("seed")
    return given if isinstance(given, int) else seed


def _default(default: Any, width: int) -> tuple[float, ...] | None:
    if isinstance(default, str):
        if default == "zeros":
            return (0.0,) * width
        if default == "initializer":
            return None
        raise _bad_default(default, width)
    values = np.asarray(default if isinstance(default, Sequence | np.ndarray) else [math.nan], np.float64)
    if values.shape != (width,) or not np.isfinite(values).all():
        raise _bad_default(default, width)
    return tuple(values.tolist())


def _bad_default(default: Any, width: int) -> ConfigurationError:
    return ConfigurationError(
        f"default is {default!r}", hint=f'say "zeros" or "initializer", or give {counted(width, "number")}'
    )


def _whole(name: str, value: Any, *, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise ConfigurationError(f"{name} is {value!r}", hint=f"give a whole number from 1 to {most}")
    return int(value)


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ConfigurationError(f"seed is {seed!r}", hint="give a whole number")
    return int(seed)


def _unknown(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"initializer {what} cannot make a row from its key alone",
        hint="use zeros, ones, Constant, RandomUniform or RandomNormal",
    )
