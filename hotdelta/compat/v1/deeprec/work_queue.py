"""`WorkQueue` of DeepRec: the files of a training, each given out once in an epoch, to whoever asks first.

What was given out is a variable of the graph: it is saved with every checkpoint and every delta, and in a cluster all
workers share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.graph.served_variables import keep_from_serving
from hotdelta.compat.v1.graph.session_config import say_without_effect
from hotdelta.compat.v1.graph.writers import apart_from_steps
from hotdelta.errors import ConfigurationError

v1 = tf.compat.v1

# What the variable holds: of which works it tells, by which seed they are shuffled, and how many were given out.
_DIGEST, _SEED, _TAKEN = range(3)


class WorkQueue:
    """Gives out `works`, strings such as paths, `num_epochs` times. After the last one, `take` raises OutOfRangeError.

    Where it was is restored with the graph: what was given out before is not given out again, also when nobody has read
    it to its end. With other works, or shuffled in another way, it begins anew, and standard error says so.
    Build it before the first Session runs.
    """

    def __init__(
        self,
        works: Sequence[str | bytes],
        num_epochs: int = 1,
        shuffle: bool = True,
        seed: int | None = None,
        prefix: str | None = None,
        num_slices: int | None = None,
        num_clients: int = 1,
        name: str | None = None,
        local_work_mgr: Any = None,
    ) -> None:
        """`num_slices` is about tables of ODPS, and `num_clients` about threads: they change nothing for files.

        Raises ConfigurationError.
        """
        if local_work_mgr is not None:
            raise ConfigurationError(
                "local_work_mgr gives a worker the slices of a table again, and there are no slices here",
                hint="leave it out",
            )
        self._works = _checked_works(works)
        self._epochs = _at_least_1("num_epochs", num_epochs)
        self._num_clients = _at_least_1("num_clients", num_clients)
        if seed is not None and not isinstance(seed, int):
            raise ConfigurationError(f"seed is {seed!r}", hint="give a whole number, or None")
        if num_clients != 1:
            say_without_effect("num_clients")
        if num_slices is not None:
            say_without_effect("num_slices")
        self._prefix = prefix
        self._shuffle = bool(shuffle)
        self._local_device = v1.no_op().device
        self._name: str = v1.get_default_graph().unique_name(name or "work_queue")
        with v1.name_scope(f"{self._name}/"):
            # Another one in each training, unless it is given.
            self._seed = (
                v1.random_uniform([], maxval=tf.int64.max, dtype=tf.int64)
                if seed is None
                else tf.constant(seed, tf.int64)
            )
            self._identity = tf.constant(_digest(self._works, self._shuffle, seed), tf.int64)
            self._state = v1.Variable(
                tf.stack([self._identity, self._seed, tf.zeros([], tf.int64)]),
                trainable=False,
                use_resource=True,
                name="state",
            )
        keep_from_serving(self._state)

    def __len__(self) -> int:
        """Of one epoch."""
        return len(self._works)

    @property
    def name(self) -> str:
        return self._name

    @property
    def works(self) -> list[bytes]:
        return list(self._works)

    @property
    def num_clients(self) -> int:
        return self._num_clients

    @property
    def digest(self) -> bytes:
        return b",".join(self._works)

    def take(self) -> tf.Tensor:
        """A scalar string; each run of it gives out the next work. Raises OutOfRangeError, when it runs."""
        with v1.name_scope(f"{self._name}/"):
            with tf.device(self._state.device):
                taken, seed = self._count_one()
                work = v1.cond(
                    taken < self._epochs * len(self._works),
                    lambda: tf.gather(tf.constant(self._works), self._place(taken, seed)),
                    _raise_at_the_end,
                )
            with tf.device(self._local_device):
                work = tf.identity(work)
                return work if self._prefix is None else v1.string_join([self._prefix, work])

    def input_producer(self) -> Any:
        """A queue of this worker, for readers of tf.train: a QueueRunner takes one work after the other into it."""
        work = self.take()
        with v1.name_scope(f"{self._name}/"), tf.device(self._local_device):
            proxy = v1.FIFOQueue(1, [tf.string], [[1]], name="proxy")
            runner = v1.train.QueueRunner(
                proxy,
                [proxy.enqueue(tf.reshape(work, [1]))],
                cancel_op=proxy.close(cancel_pending_enqueues=True),
            )
            v1.train.add_queue_runner(runner)
        return proxy

    def input_dataset(self) -> Any:
        """A tf.data.Dataset of works. Its iterator has to be initialized: it is not for make_one_shot_iterator."""
        proxy = self.input_producer()
        with v1.name_scope(f"{self._name}/"), tf.device(self._local_device):
            dataset = v1.data.Dataset.from_tensors(0).repeat()
            return dataset.map(lambda _: tf.reshape(proxy.dequeue(), []))

    def add_summary(self) -> None:
        """How much is left, as the share of an epoch."""
        with v1.name_scope(f"{self._name}/"), tf.device(self._state.device):
            taken = self._unless_other(self._state.read_value())[_TAKEN]
            left = tf.cast(self._epochs * len(self._works) - taken, tf.float32)
        v1.summary.scalar(f"{self._name}/fraction_of_{len(self)}_full", left / len(self))

    def _count_one(self) -> tuple[tf.Tensor, tf.Tensor]:
        """How many were given out before, and the seed. One at a time, whoever asks."""
        mutex = tf.raw_ops.MutexV2(shared_name=f"{self._name}/mutex")
        lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            saved = self._state.read_value()
        with tf.control_dependencies([self._tell_of_other(saved)]):
            state = self._unless_other(saved)
        taken = state[_TAKEN]
        # Fewer epochs than before take nothing back.
        next_taken = tf.maximum(taken, tf.minimum(taken + 1, self._epochs * len(self._works)))
        with apart_from_steps():
            counted = self._state.assign(
                tf.stack([state[_DIGEST], state[_SEED], next_taken]), read_value=False
            )
        with tf.control_dependencies([counted]):
            release = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([release]):
            return tf.identity(taken), tf.identity(state[_SEED])

    def _unless_other(self, saved: tf.Tensor) -> tf.Tensor:
        """What was saved, when it is of these works; else the beginning."""
        beginning = tf.stack([self._identity, self._seed, tf.zeros([], tf.int64)])
        return tf.where(tf.equal(saved[_DIGEST], self._identity), saved, beginning)

    def _tell_of_other(self, saved: tf.Tensor) -> tf.Operation:
        def tell() -> tf.Operation:
            text = f"{self._name} begins anew: what was saved is of other works, or of another order"
            return tf.group(tf.print(text))

        return v1.cond(tf.equal(saved[_DIGEST], self._identity), tf.no_op, tell)

    def _place(self, taken: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Of the next work in the list."""
        place = taken % len(self._works)
        if not self._shuffle:
            return place
        epoch = taken // len(self._works)
        return tf.random.experimental.index_shuffle(
            place, tf.stack([seed, epoch]), tf.constant(len(self._works) - 1, tf.int64)
        )


def _raise_at_the_end() -> tf.Tensor:
    """OutOfRangeError, by an operation of stock TensorFlow that says so as often as it is run."""
    nothing = v1.data.Dataset.from_tensor_slices(tf.constant([], tf.string))
    return v1.data.make_one_shot_iterator(nothing).get_next("all_works_are_taken")


def _checked_works(works: Sequence[str | bytes]) -> list[bytes]:
    is_list = isinstance(works, list | tuple) and bool(works)
    if not is_list or not all(isinstance(work, str | bytes) for work in works):
        raise ConfigurationError(f"works are {works!r}", hint="give a list of strings, one at least")
    return [(work.encode() if isinstance(work, str) else work).strip() for work in works]


def _at_least_1(name: str, value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}", hint="give a whole number, at least 1")
    return value


def _digest(works: Sequence[bytes], shuffle: bool, seed: int | None) -> int:
    """Of what decides which work comes when, but for the number of epochs: that may grow."""
    order = repr((list(works), shuffle, seed if shuffle else None))
    return int.from_bytes(hashlib.sha256(order.encode()).digest()[:8], "big", signed=True)
