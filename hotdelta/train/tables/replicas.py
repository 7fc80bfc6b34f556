"""Variables that tf.distribute keeps one copy of per device: which copy is saved, and how a value gets to all of them.

The first copy (the primary) stands for all: it is keyed, recorded, gathered from and saved. That is exact as long as
every copy gets every update, which `differing` checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.bundle.row_memory import is_same_bits
from hotdelta.errors import ConfigurationError
from hotdelta.keras_internals import strategy_of
from hotdelta.tensorflow_internals import DistributedVariable, all_copies, is_default_strategy, local_copy

_ONE_PROCESS = frozenset({"OneDeviceStrategy", "MirroredStrategy"})


def primary(variable: Any) -> Any:
    """The copy that stands for all; any other variable is its own."""
    if not isinstance(variable, DistributedVariable):
        return variable
    if variable.synchronization == tf.VariableSynchronization.ON_READ:
        raise ConfigurationError(
            f"variable {variable.name!r} has another value on each replica (synchronization ON_READ)",
            hint="make it with synchronization='on_write' and an aggregation, so that the replicas stay equal",
        )
    return variable.values[0]


def local(variable: Any) -> Any:
    """The copy of the replica that is being traced or updated here, the primary outside of replicas."""
    if not isinstance(variable, DistributedVariable):
        return variable
    return local_copy(variable)


def is_primary(variable: tf.Variable) -> bool:
    """False for the copies that need not be recorded."""
    return variable is copies(variable)[0]


def copies(variable: tf.Variable) -> tuple[tf.Variable, ...]:
    """Every copy of which `variable` is one, the primary first; a plain variable is the only one."""
    return all_copies(variable) or (variable,)


def differing(variables: Iterable[tuple[str, tf.Variable]]) -> list[str]:
    """The keys of variables whose copies are not equal, bit for bit. Reads all of them."""
    found = []
    for key, variable in variables:
        first, *others = copies(variable)
        value = np.asarray(first.read_value() if others else ())
        if not all(is_same_bits(value, np.asarray(other.read_value())) for other in others):
            found.append(key)
    return found


def refuse_differing(variables: Iterable[tuple[str, tf.Variable]]) -> None:
    """Raises ConfigurationError when replicas have drifted apart: only one of them could be saved."""
    found = differing(variables)
    if found:
        raise ConfigurationError(
            f"the replicas do not agree on {', '.join(found)}",
            hint="write variables with an aggregation; for batch normalization pass synchronized=True",
        )


def refuse_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises ConfigurationError for a strategy under which Keras would not train what is saved."""
    if is_default_strategy(strategy) or type(strategy).__name__ in _ONE_PROCESS:
        return
    raise ConfigurationError(
        f"the callback cannot save a model that fit trains under {type(strategy).__name__}",
        hint="use tf.distribute.MirroredStrategy; for parameter servers use a custom loop with "
        "hotdelta.train.DeltaWriter and a ClusterCoordinator",
    )


def refuse_other_scope(strategy: tf.distribute.Strategy, optimizer: Any) -> None:
    """Raises ConfigurationError when the optimizer was not made in the scope in which the model was."""
    made_in = strategy_of(optimizer)
    if made_in is not None and type(made_in) is not type(strategy):
        raise ConfigurationError(
            f"the model was made under {type(strategy).__name__}, its optimizer under {type(made_in).__name__}",
            hint="make and compile the model, and make its optimizer, in one `with strategy.scope()`",
        )
