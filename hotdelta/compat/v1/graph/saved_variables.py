"""The variables of a graph as the chain sees them: parts of a partitioned variable are one variable with one key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import is_partitioned, parts_of_partitioned, reference_of, slice_info
from hotdelta.train.tables.growth import Growth, growth_of

_KEY = "_hotdelta_key"


def is_resource(variable: Any) -> bool:
    """Not a reference variable, as those of TensorFlow 1 are."""
    return hasattr(variable, "handle")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One variable of the graph: the whole of a model's variable, or some of its rows."""

    variable: Any
    first_row: int
    rows: int
    slice_spec: str

    @property
    def reference(self) -> tf.Tensor:
        """The tensor through which operations reach the variable: its handle, or its reference."""
        variable = self.variable
        return variable.handle if self.is_resource else reference_of(variable)

    @property
    def is_resource(self) -> bool:
        return is_resource(self.variable)

    @property
    def name(self) -> str:
        return str(self.variable.op.name)


@dataclass(frozen=True, slots=True, eq=False)
class SavedVariable:
    """One variable of the model. `key` is its name in checkpoints: that of tf.train.Saver.

    `growth`: of one that reserves more rows than are in use, which its shape has.
    """

    key: str
    shape: tuple[int, ...]
    dtype: tf.DType
    parts: tuple[Part, ...]
    is_trainable: bool
    growth: Growth | None = None

    @property
    def array_dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.dtype.as_numpy_dtype)
        return dtype

    @property
    def spec(self) -> tf.TensorSpec:
        return tf.TensorSpec(self.shape, self.dtype)

    @property
    def part_rows(self) -> tuple[int, ...]:
        """Empty when there is only one part."""
        return tuple(part.rows for part in self.parts) if len(self.parts) > 1 else ()


def is_own_record(key: str) -> bool:
    """Of what a table with keys knows of its keys beside their rows."""
    return key.startswith((names.USAGE_PREFIX, names.WAITING_PREFIX))


def is_remote(device: str) -> bool:
    """Whether another process than that of the Session holds what is on this device."""
    job = tf.DeviceSpec.from_string(device or "").job
    return job not in (None, "localhost")


def cpu_of(device: str) -> str:
    """The processor that shares its memory, and its file system, with a device."""
    spec = tf.DeviceSpec.from_string(device or "").replace(device_type="CPU", device_index=0)
    return str(spec.to_string())


@contextmanager
def on_device_of(variable: Any) -> Iterator[None]:
    """There, whatever scopes are open: a device function would put what is made inside somewhere else."""
    if not variable.device:
        yield
        return
    with tf.device(None), tf.device(variable.device):
        yield


def find_saved_variables(variables: Iterable[Any]) -> tuple[SavedVariable, ...]:
    """In the order in which the variables were made. Raises ConfigurationError for what a chain cannot hold."""
    groups: dict[str, list[Any]] = {}
    for variable in _flatten(variables):
        groups.setdefault(key_of(variable), []).append(variable)
    trainable = {id(variable) for variable in _flatten(tf.compat.v1.trainable_variables())}
    return tuple(_saved(key, group, trainable) for key, group in groups.items())


def split_strings(variables: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """What can be saved, and the variables of strings, which cannot."""
    numbers: list[Any] = []
    strings: list[Any] = []
    for variable in _flatten(variables):
        (strings if variable.dtype.base_dtype == tf.string else numbers).append(variable)
    return numbers, strings


def _flatten(variables: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for variable in variables:
        if isinstance(variable, tf.Variable):
            flat.append(variable)
        elif is_partitioned(variable):
            flat.extend(parts_of_partitioned(variable))
        else:
            raise ConfigurationError(
                f"{variable!r} is no variable, so its changes cannot be in a delta",
                hint="save it with a Saver of its own, without incremental_save_restore",
            )
    return flat


def save_as(variable: Any, key: str) -> None:
    """Its key in checkpoints is not its name in the graph."""
    setattr(variable, _KEY, key)


def key_of(variable: Any) -> str:
    given = getattr(variable, _KEY, None)
    if given is not None:
        return str(given)
    info = slice_info(variable)
    return str(info.full_name) if info else str(variable.op.name)


def _saved(key: str, variables: list[Any], trainable: set[int]) -> SavedVariable:
    first = variables[0]
    info = slice_info(first)
    if not first.shape.is_fully_defined() or first.dtype.base_dtype == tf.string:
        raise ConfigurationError(
            f"variable {key!r} is {first.dtype.base_dtype.name} of shape {first.shape}, which a delta cannot hold",
            hint="give it a shape and a numeric dtype",
        )
    shape = tuple(int(size) for size in (info.full_shape if info else first.shape))
    parts = tuple(
        sorted((_part(key, variable, shape) for variable in variables), key=lambda part: part.first_row)
    )
    if shape and sum(part.rows for part in parts) != shape[0]:
        raise ConfigurationError(
            f"{key!r} has parts of {[part.rows for part in parts]} rows, and {shape[0]} rows in all",
            hint="save all parts of a partitioned variable together; give two variables different names; use the "
            "optimizer outside of every variable_scope (inside, TensorFlow takes slots of parts for tables apart)",
        )
    return SavedVariable(key, shape, first.dtype.base_dtype, parts, id(first) in trainable, growth_of(first))


def _part(key: str, variable: Any, shape: tuple[int, ...]) -> Part:
    info = slice_info(variable)
    if info is None:
        return Part(variable, 0, shape[0] if shape else 1, "")
    if any(info.var_offset[1:]) or tuple(info.var_shape[1:]) != shape[1:]:
        raise ConfigurationError(
            f"{key!r} is partitioned along its columns", hint="partition it along axis 0, by rows"
        )
    return Part(variable, int(info.var_offset[0]), int(info.var_shape[0]), str(info.spec))
