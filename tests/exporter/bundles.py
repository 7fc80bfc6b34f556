"""A small model of two tables and two dense variables, and bundles for it written by TensorFlow itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain.format.position import Node, Position, encode_identity

Array = npt.NDArray[Any]

USERS, ITEMS, WIDTH = 20, 30, 4
FIRST = Node(Position(1, 1), "ab" * 16)
SECOND = Node(Position(1, 2), "cd" * 16)
THIRD = Node(Position(1, 3), "ef" * 16)


class TwoTables(tf.Module):
    def __init__(self) -> None:
        super().__init__(name="two_tables")
        self.users = tf.Variable(tf.zeros([USERS, WIDTH]), name="emb/embeddings")
        self.items = tf.Variable(tf.zeros([ITEMS, WIDTH], tf.float16), name="emb/embeddings")
        self.kernel = tf.Variable(tf.zeros([WIDTH]), name="kernel")
        self.bias = tf.Variable(0.0, name="bias")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="user"),
            tf.TensorSpec([None], tf.int64, name="item"),
        ]
    )
    def score(self, user: tf.Tensor, item: tf.Tensor) -> Mapping[str, tf.Tensor]:
        rows = tf.gather(self.users, user) * tf.cast(tf.gather(self.items, item), tf.float32)
        return {"score": tf.linalg.matvec(rows, self.kernel) + self.bias}


def full_tensors(seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "users": random.standard_normal((USERS, WIDTH), np.float32),
        "items": random.standard_normal((ITEMS, WIDTH), np.float32).astype(np.float16),
        "kernel": random.standard_normal(WIDTH, np.float32),
        "bias": np.array(random.standard_normal(), np.float32),
        "hotdelta-identity": np.array(encode_identity(FIRST, None), np.int64),
        "hotdelta-step": np.array(100, np.int64),
    }


def delta_tensors(node: Node = SECOND, parent: Node = FIRST, seed: int = 1) -> dict[str, Array]:
    """Changes rows of both tables and the bias; the kernel stays."""
    random = np.random.default_rng(seed)
    return {
        "users-ids": np.array([0, 3, 19], np.int64),
        "users-rows": random.standard_normal((3, WIDTH), np.float32),
        "items-ids": np.array([7, 29], np.int64),
        "items-rows": random.standard_normal((2, WIDTH), np.float32).astype(np.float16),
        "kernel-value": np.zeros((0, WIDTH), np.float32),
        "bias-value": random.standard_normal(1, np.float32),
        "hotdelta-identity": np.array(encode_identity(node, parent), np.int64),
        "hotdelta-step": np.array(100 + node.position.seq, np.int64),
    }


def write_bundle(prefix: Path, tensors: Mapping[str, Array]) -> str:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    return str(prefix)


def after(full: Mapping[str, Array], *deltas: Mapping[str, Array]) -> dict[str, bytes]:
    """The bytes of every served variable once the deltas are applied."""
    values = {key: np.array(full[key]) for key in ("users", "items", "kernel", "bias")}
    for delta in deltas:
        for table in ("users", "items"):
            values[table][delta[f"{table}-ids"]] = delta[f"{table}-rows"]
        for other in ("kernel", "bias"):
            if len(delta[f"{other}-value"]):
                values[other] = delta[f"{other}-value"][0]
    return {key: value.tobytes() for key, value in values.items()}


def fed(tensors: dict[str, Array]) -> dict[str, Array]:
    """What a delta holds, as stage_rows takes it."""
    given = {name: value for name, value in tensors.items() if not name.startswith("hotdelta-")}
    return given | {"identity": tensors["hotdelta-identity"], "step": tensors["hotdelta-step"]}
