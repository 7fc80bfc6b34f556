"""`Estimator(warm_start_from=...)`: the first training starts with the variables of another one's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from hotdelta.compat.v1.restore import warm_starts
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1


class WarmStartSettings(NamedTuple):
    """tf.estimator.WarmStartSettings: from which checkpoint, and which variables. See tf.train.warm_start."""

    ckpt_to_initialize_from: str | Path
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def to_settings(given: Any) -> WarmStartSettings | None:
    """Raises ConfigurationError when it is neither a path nor settings."""
    if given is None or isinstance(given, WarmStartSettings):
        return given
    if isinstance(given, str | Path):
        return WarmStartSettings(given)
    raise ConfigurationError(
        f"warm_start_from is {given!r}",
        hint="give a checkpoint, a directory with one, or tf.estimator.WarmStartSettings",
    )


def warm_start(settings: WarmStartSettings) -> None:
    """Changes the initializers of the default graph. The deltas after the checkpoint are not read; the log says so."""
    given = settings.ckpt_to_initialize_from
    path = warm_starts.full_of(given)
    if path is None or not v1.train.checkpoint_exists(path):
        raise ConfigurationError(
            f"warm_start_from: {given} holds no checkpoint", hint="give a checkpoint, or a directory with one"
        )
    warm_starts.warm_start(
        path,
        settings.vars_to_warm_start,
        settings.var_name_to_vocab_info,
        settings.var_name_to_prev_var_name,
    )
