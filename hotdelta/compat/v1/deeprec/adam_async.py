"""`tf.train.AdamAsyncOptimizer`: Adam that moves the rows of the step only, with powers of beta for each variable."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.deeprec.variable_writes import assign, assign_sub, subtract_rows, write_rows
from hotdelta.compat.v1.graph.served_variables import keep_from_serving
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import OpenOptimizer


class AdamAsyncOptimizer(OpenOptimizer):
    """As in DeepRec. Slots of a variable: moments `m` and `v`, `beta1_power` and `beta2_power`.

    A sparse gradient reads and writes the rows that it names, once for each id: those of an id that is there twice are
    added before. With `apply_sparse_rmsprop` it goes by RMSProp with momentum, which uses no powers.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        apply_sparse_rmsprop: bool = False,
        name: str = "AdamAsync",
    ) -> None:
        """Raises ConfigurationError: the operations of one update cannot be locked together."""
        refuse_locking(use_locking)
        super().__init__(use_locking, name)
        self._constants = (learning_rate, beta1, beta2, epsilon)
        self._prepared: tuple[tf.Tensor, ...] = ()
        self._is_rmsprop = apply_sparse_rmsprop

    def make_slots(self, variable: Any) -> None:
        dtype = variable.dtype.base_dtype
        for slot in ("m", "v"):
            self.add_slot(variable, slot, 0.0, shape=variable.shape, dtype=dtype)
        _, beta1, beta2, _ = self._constants
        for slot, beta in (("beta1_power", beta1), ("beta2_power", beta2)):
            keep_from_serving(self.add_number(variable, slot, tf.convert_to_tensor(beta, dtype)))

    def prepare(self) -> None:
        self._prepared = tuple(tf.convert_to_tensor(constant) for constant in self._constants)

    def update_all(self, variable: Any, grad: tf.Tensor) -> tf.Operation:
        _, beta1, beta2, _ = self._numbers(variable)
        m, v = self._moments(variable)
        new_m = m * beta1 + grad * (1 - beta1)
        new_v = v * beta2 + tf.square(grad) * (1 - beta2)
        move = self._move(variable, new_m, new_v)
        return tf.group(
            assign_sub(variable, move),
            assign(m, new_m),
            assign(v, new_v),
            *self._raise_powers(variable, after=move, is_step=True),
        )

    def update_rows(self, variable: Any, ids: tf.Tensor, grad: tf.Tensor) -> tf.Operation:
        learning_rate, beta1, beta2, epsilon = self._numbers(variable)
        m, v = self._moments(variable)
        old_m, old_v = tf.gather(m, ids), tf.gather(v, ids)
        new_v = old_v * beta2 + tf.square(grad) * (1 - beta2)
        if self._is_rmsprop:
            new_m = old_m * beta1 + tf.math.rsqrt(new_v + epsilon) * learning_rate * grad
            move, powers = new_m, []
        else:
            new_m = old_m * beta1 + grad * (1 - beta1)
            move = self._move(variable, new_m, new_v)
            powers = self._raise_powers(variable, after=move, is_step=tf.size(ids) > 0)
        return tf.group(
            subtract_rows(variable, ids, move), write_rows(m, ids, new_m), write_rows(v, ids, new_v), *powers
        )

    def _move(self, variable: Any, new_m: tf.Tensor, new_v: tf.Tensor) -> tf.Tensor:
        learning_rate, _, _, epsilon = self._numbers(variable)
        return adam_move(new_m, new_v, learning_rate, epsilon, powers=self._powers(variable))

    def _raise_powers(self, variable: Any, *, after: tf.Tensor, is_step: Any) -> list[tf.Operation]:
        """Once for each step; a step without rows is none. After those were read that the step goes by."""
        _, beta1, beta2, _ = self._numbers(variable)
        writes = []
        for power, beta in zip(self._powers(variable), (beta1, beta2), strict=True):
            raised = tf.where(is_step, power * beta, power)
            with tf.control_dependencies([after]):
                writes.append(assign(power, raised))
        return writes

    def _moments(self, variable: Any) -> tuple[Any, Any]:
        return self.get_slot(variable, "m"), self.get_slot(variable, "v")

    def _powers(self, variable: Any) -> tuple[Any, Any]:
        return self.get_slot(variable, "beta1_power"), self.get_slot(variable, "beta2_power")

    def _numbers(self, variable: Any) -> list[tf.Tensor]:
        """Learning rate, beta1, beta2, epsilon, of the type of the variable."""
        return [tf.cast(number, variable.dtype.base_dtype) for number in self._prepared]


def adam_move(
    new_m: tf.Tensor,
    new_v: tf.Tensor,
    learning_rate: tf.Tensor,
    epsilon: tf.Tensor,
    *,
    powers: tuple[Any, Any],
) -> tf.Tensor:
    """By how much Adam moves what has these moments. `powers`: of beta1 and beta2, up to this step."""
    beta1_power, beta2_power = powers
    alpha = learning_rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
    return new_m * alpha / (tf.sqrt(new_v) + epsilon)


def refuse_locking(use_locking: bool) -> None:
    if use_locking:
        raise ConfigurationError(
            "use_locking=True: an update is several operations here, and nothing locks them together",
            hint="leave it out; without it DeepRec locks nothing, either",
        )
