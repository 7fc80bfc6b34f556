"""What the scenarios under MirroredStrategy share: how they are found, their model, and that replicas are equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.errors import ConfigurationError
from hotdelta.train.tables.replicas import copies
from tests.keras.small_models import small_model

TABLE = "items/embeddings"
Scenario = Callable[[tf.distribute.Strategy, Path], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(check: Scenario) -> Scenario:
    SCENARIOS[check.__name__] = check
    return check


def mirrored_model(
    strategy: tf.distribute.Strategy, optimizer: Callable[[], Any], **options: Any
) -> keras.Model:
    with strategy.scope():
        return small_model(optimizer(), **options)


def adagrad() -> Any:
    return hk.Adagrad(0.1)


def assert_replicas_equal(callback: hk.DeltaCheckpoint) -> None:
    """Every variable, tables and slots too, on both devices."""
    assert callback._attachment.binding is not None
    for key, variable in callback._attachment.binding.variables_by_key().items():
        first, second = (np.asarray(copy.read_value()) for copy in copies(variable))
        assert first.tobytes() == second.tobytes(), key


def raised(action: Callable[[], Any]) -> str:
    try:
        action()
    except ConfigurationError as error:
        return str(error)
    raise AssertionError("nothing was refused")
