"""A loop that trains a table without a fixed vocabulary. A golden chain is written by it: it must stay as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.train import DeltaWriter, DynamicTable
from tests.chain_replay import values_of

BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None}


class Ranker(tf.Module):
    """A table with keys, one without, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.users = DynamicTable(4, max_rows=1_000, name="users")
        self.items = tf.Variable(tf.ones([10, 4]), name="items")
        self.scale = tf.Variable(1.0, name="scale")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="users")])
    def serve(self, users: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": tf.reduce_sum(self.users.look_up(users), axis=1) * self.scale}

    def loss(self, users: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
        rows = self.users.look_up(users, training=True) * tf.gather(self.items, items)
        return tf.reduce_sum(tf.square(tf.reduce_sum(rows, axis=1) * self.scale - 1))


class Training:
    """A loop with its writer."""

    def __init__(self, run_dir: Path) -> None:
        self.ranker, self.optimizer = Ranker(), hk.Adam(0.05)
        variables = list(self.ranker.trainable_variables)
        self.optimizer.build(variables)
        self.writer = DeltaWriter(
            run_dir,
            self.ranker,
            tables=["items"],
            optimizer=self.optimizer,
            signatures={"serving_default": self.ranker.serve},
            **BY_HAND,
        )

        @tf.function
        def step(users: tf.Tensor, items: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = self.ranker.loss(users, items)
            self.optimizer.apply(tape.gradient(loss, variables), variables)

        self._step = step

    def train(self, users: list[str]) -> None:
        self._step(tf.constant(users), tf.constant([len(user) % 10 for user in users]))
        self.writer.step()

    def values(self) -> dict[str, bytes]:
        variables = self.writer._trainer.trackers.variables
        return values_of({item.key: item.variable for item in variables.everything()})
