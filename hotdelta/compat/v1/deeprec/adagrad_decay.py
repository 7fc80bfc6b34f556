"""`tf.train.AdagradDecayOptimizer`: Adagrad whose accumulators are discounted once in so many steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.deeprec.adam_async import refuse_locking
from hotdelta.compat.v1.deeprec.variable_writes import assign, assign_sub, sparse_adagrad, write_rows
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import OpenOptimizer


class AdagradDecayOptimizer(OpenOptimizer):
    """As in DeepRec. Slots of a variable: `accumulator`, and `accumulator_decay_power` with one number for each row.

    An accumulator is multiplied by `accumulator_decay_rate`, and never becomes less than its initial value, before the
    first update of its row after each `accumulator_decay_step` steps: a row that was away for several such periods is
    discounted once with each of its next updates, until it is even.
    """

    def __init__(
        self,
        learning_rate: Any,
        global_step: Any,
        initial_accumulator_value: float = 0.1,
        accumulator_decay_step: int = 100_000,
        accumulator_decay_rate: float = 0.9,
        use_locking: bool = False,
        name: str = "AdagradDecay",
    ) -> None:
        """Raises ConfigurationError."""
        refuse_locking(use_locking)
        if not isinstance(global_step, tf.Variable):
            raise ConfigurationError(
                f"global_step is {global_step!r}, and decay goes by the variable that counts the steps",
                hint="pass tf.train.get_or_create_global_step()",
            )
        if not initial_accumulator_value > 0:
            _refuse("initial_accumulator_value", initial_accumulator_value, "a number above 0")
        if not accumulator_decay_step > 0:
            _refuse("accumulator_decay_step", accumulator_decay_step, "a number of steps above 0")
        if not 0 < accumulator_decay_rate < 1:
            _refuse("accumulator_decay_rate", accumulator_decay_rate, "a number between 0 and 1")
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._global_step = global_step
        self._least = initial_accumulator_value
        self._period = accumulator_decay_step
        self._rate = accumulator_decay_rate
        # Made by tf.train before the updates of a step.
        self._learning_rate_tensor: Any = None
        self._periods: Any = None

    def make_slots(self, variable: Any) -> None:
        dtype = variable.dtype.base_dtype
        self.add_slot(variable, "accumulator", self._least, shape=variable.shape, dtype=dtype)
        rows = variable.shape[:1]
        self.add_slot(variable, "accumulator_decay_power", 0, shape=rows, dtype=self._step_type)

    @property
    def _step_type(self) -> tf.DType:
        return self._global_step.dtype.base_dtype

    def prepare(self) -> None:
        step = tf.identity(self._global_step) + 1
        self._periods = step // tf.cast(self._period, self._step_type)
        self._learning_rate_tensor = tf.convert_to_tensor(self._learning_rate)

    def update_all(self, variable: Any, grad: tf.Tensor) -> tf.Operation:
        accumulator, power = self._slots_of(variable)
        old, is_due, powers = tf.identity(accumulator), *self._due(tf.identity(power))
        new = self._discounted(old, is_due, variable) + tf.square(grad)
        move = grad * self._learning_rate_for(variable) * tf.math.rsqrt(new)
        return tf.group(assign_sub(variable, move), assign(accumulator, new), assign(power, powers))

    def update_rows(self, variable: Any, ids: tf.Tensor, grad: tf.Tensor) -> tf.Operation:
        """Discounts the rows, then leaves them to the sparse Adagrad of TensorFlow."""
        accumulator, power = self._slots_of(variable)
        is_due, powers = self._due(tf.gather(power, ids))
        discounted = self._discounted(tf.gather(accumulator, ids), is_due, variable)
        discounts = [write_rows(accumulator, ids, discounted), write_rows(power, ids, powers)]
        with tf.control_dependencies(discounts):
            update = sparse_adagrad(variable, accumulator, self._learning_rate_for(variable), grad, ids)
        return tf.group(*discounts, update)

    def _due(self, powers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Which rows have not had their discount for the periods that are over, and how many each has had then."""
        is_due = self._periods > powers
        return is_due, powers + tf.cast(is_due, powers.dtype)

    def _discounted(self, accumulators: tf.Tensor, is_due: tf.Tensor, variable: Any) -> tf.Tensor:
        dtype = variable.dtype.base_dtype
        lower = tf.maximum(accumulators * tf.cast(self._rate, dtype), tf.cast(self._least, dtype))
        dimensions = accumulators.shape.rank - is_due.shape.rank
        is_due = tf.reshape(is_due, tf.concat([tf.shape(is_due), [1] * dimensions], 0))
        return tf.where(is_due, lower, accumulators)

    def _learning_rate_for(self, variable: Any) -> tf.Tensor:
        return tf.cast(self._learning_rate_tensor, variable.dtype.base_dtype)

    def _slots_of(self, variable: Any) -> tuple[Any, Any]:
        return self.get_slot(variable, "accumulator"), self.get_slot(variable, "accumulator_decay_power")


def _refuse(name: str, value: Any, wanted: str) -> None:
    raise ConfigurationError(f"{name} is {value!r}", hint=f"give {wanted}")
