"""Recommenders as people write them: subclassed, compiled, and not built before their first batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hotdelta.keras as hk

layers = keras.layers
ROWS, WIDTH, BATCH = 12, 3, 4
COLOURS = ["red", "green", "blue"]


class TwoTowers(keras.Model):
    """Retrieval: the candidates are the labels of the batch, and each one's negatives are the others."""

    def __init__(self) -> None:
        super().__init__()
        self.query = keras.Sequential([hk.Embedding(ROWS, WIDTH), layers.Dense(WIDTH)])
        self.candidate = layers.Embedding(ROWS, WIDTH)

    def call(self, inputs: Any) -> Any:
        return {"query": self.query(inputs)}

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        scores = tf.matmul(y_pred["query"], self.candidate(y), transpose_b=True)
        own = tf.range(tf.shape(scores)[0])
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(own, scores, from_logits=True))


class Ranking(keras.Model):
    """Two tables, of words and of ids, under a dense layer; with a train_step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.colour = keras.Sequential(
            [layers.StringLookup(vocabulary=COLOURS), hk.Embedding(len(COLOURS) + 1, WIDTH)]
        )
        self.item = layers.Embedding(ROWS, WIDTH)
        self.ratings = keras.Sequential([layers.Dropout(0.2), layers.Dense(1)])

    def call(self, colour: Any, item: Any) -> Any:
        return self.ratings(tf.concat([self.colour(colour), self.item(item)], axis=-1))

    def train_step(self, data: Mapping[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            rating = self(data["colour"], data["item"], training=True)
            loss = tf.reduce_mean(tf.square(rating - data["rating"]))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Dlrm(keras.Model):
    """Dense features through a bottom layer, and the dot products of all features into a top layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = {name: hk.Embedding(ROWS, WIDTH) for name in ("user", "item")}
        self.bottom, self.top = layers.Dense(WIDTH, "relu"), layers.Dense(1, "sigmoid")

    def call(self, inputs: Mapping[str, Any]) -> Any:
        dense = self.bottom(inputs["dense"])
        rows = tf.stack([dense, *(table(inputs[name]) for name, table in self.tables.items())], axis=1)
        dots = layers.Flatten()(tf.matmul(rows, rows, transpose_b=True))
        return self.top(tf.concat([dense, dots], axis=-1))


class Cross(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")
        self.bias = self.add_weight(shape=(shape[-1],), initializer="zeros", name="bias")

    def call(self, first: Any, previous: Any = None) -> Any:
        previous = first if previous is None else previous
        return first * (previous @ self.kernel + self.bias) + previous


class Dcn(keras.Model):
    """Cross layers beside a deep network."""

    def __init__(self) -> None:
        super().__init__()
        self.features = [hk.Embedding(ROWS, WIDTH) for _ in range(2)]
        self.crosses, self.deep, self.logit = [Cross(), Cross()], layers.Dense(4, "relu"), layers.Dense(1)

    def call(self, inputs: tuple[Any, ...]) -> Any:
        rows = tf.concat([table(ids) for table, ids in zip(self.features, inputs, strict=True)], axis=-1)
        crossed = rows
        for cross in self.crosses:
            crossed = cross(rows, crossed)
        return self.logit(tf.concat([crossed, self.deep(rows)], axis=-1))


class Listwise(keras.Model):
    """One user, several items: a score for each, compared within the list."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = hk.Embedding(ROWS, WIDTH), hk.Embedding(ROWS, WIDTH)
        self.score = layers.Dense(1)

    def call(self, inputs: Mapping[str, Any]) -> Any:
        items = self.item(inputs["items"])
        users = tf.repeat(self.user(inputs["user"])[:, tf.newaxis], tf.shape(items)[1], axis=1)
        return tf.squeeze(self.score(tf.concat([users, items], axis=-1)), -1)


class MultiTask(keras.Model):
    """Two answers from the same rows, each with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = hk.Embedding(ROWS, WIDTH), hk.Embedding(ROWS, WIDTH)
        self.heads = {"click": layers.Dense(1, "sigmoid"), "rating": layers.Dense(1)}

    def call(self, inputs: Mapping[str, Any]) -> Any:
        both = tf.concat([self.user(inputs["user"]), self.item(inputs["item"])], axis=-1)
        return {name: head(both) for name, head in self.heads.items()}


class NextItem(keras.Model):
    """What comes next in a history of items, told apart by a product with the table: weights are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.order = layers.Embedding(ROWS, WIDTH, mask_zero=True), hk.Embedding(5, WIDTH)
        self.attention, self.norm = layers.Attention(use_scale=True), layers.LayerNormalization()

    def call(self, history: Any) -> Any:
        rows = self.items(history) + self.order(tf.range(tf.shape(history)[1]))
        attended = self.norm(rows + self.attention([rows, rows], use_causal_mask=True))
        return tf.matmul(attended[:, -1], self.items.embeddings, transpose_b=True)


class Collaborative(keras.Model):
    """A dot product of user and item with a bias for each."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.user_bias = layers.Embedding(ROWS, WIDTH), layers.Embedding(ROWS, 1)
        self.item, self.item_bias = hk.Embedding(ROWS, WIDTH), hk.Embedding(ROWS, 1)

    def call(self, inputs: Any) -> Any:
        user, item = inputs[:, 0], inputs[:, 1]
        dot = tf.reduce_sum(self.user(user) * self.item(item), axis=-1, keepdims=True)
        return tf.sigmoid(dot + self.user_bias(user) + self.item_bias(item))


class WideAndDeep(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.wide = hk.Embedding(ROWS, 1, embeddings_initializer="zeros")
        self.deep = keras.Sequential([hk.Embedding(ROWS, WIDTH), layers.Flatten(), layers.Dense(1)])

    def call(self, inputs: Mapping[str, Any]) -> Any:
        return tf.reduce_sum(self.wide(inputs["crossed"]), axis=1) + self.deep(inputs["ids"])


def _layers_alone() -> keras.Model:
    return keras.Sequential(
        [layers.Embedding(ROWS, WIDTH), layers.Flatten(), layers.Dropout(0.5), layers.Dense(1)]
    )


@dataclass(frozen=True, slots=True)
class Pattern:
    """`batch`: what a step is given. `arguments`: what of it the model is called with, served under `names`."""

    make: Callable[[], keras.Model]
    loss: Any
    batch: Callable[[np.random.Generator], Any]
    names: tuple[str, ...] = ("inputs",)
    arguments: Callable[[Any], tuple[Any, ...]] = lambda batch: batch[:1]
    whole_reads: tuple[str, ...] = ()

    def model(self, *, seed: int, **options: Any) -> keras.Model:
        keras.utils.set_random_seed(seed)
        model = self.make()
        model.compile(**{"optimizer": hk.SGD(0.1), "loss": self.loss, **options})
        return model

    def dataset(self, steps: int, *, seed: int) -> tf.data.Dataset:
        random = np.random.default_rng(seed)
        made = [self.batch(random) for _ in range(steps)]
        return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda *each: np.stack(each), *made))


def _ids(random: np.random.Generator, *shape: int) -> Any:
    return random.integers(1, ROWS, (BATCH, *shape))


def _numbers(random: np.random.Generator, width: int = 1) -> Any:
    return random.random((BATCH, width), np.float32)


def _user_and_item(random: np.random.Generator) -> dict[str, Any]:
    return {"user": _ids(random), "item": _ids(random)}


PATTERNS = {
    "retrieval": Pattern(TwoTowers, None, lambda r: (_ids(r), _ids(r))),
    "ranking": Pattern(
        Ranking,
        None,
        lambda r: {"colour": r.choice(COLOURS, BATCH), "item": _ids(r), "rating": _numbers(r)},
        names=("colour", "item"),
        arguments=lambda batch: (batch["colour"], batch["item"]),
    ),
    "dlrm": Pattern(
        Dlrm,
        "binary_crossentropy",
        lambda r: ({"dense": _numbers(r, 2), **_user_and_item(r)}, _numbers(r)),
        names=("dense", "item", "user"),
    ),
    "dcn": Pattern(Dcn, "mse", lambda r: ((_ids(r), _ids(r)), _numbers(r)), names=("input_0", "input_1")),
    "listwise": Pattern(
        Listwise,
        keras.losses.CategoricalCrossentropy(from_logits=True),
        lambda r: ({"user": _ids(r), "items": _ids(r, 5)}, _numbers(r, 5)),
        names=("items", "user"),
    ),
    "multi-task": Pattern(
        MultiTask,
        {"click": "binary_crossentropy", "rating": "mse"},
        lambda r: (_user_and_item(r), {"click": _numbers(r), "rating": _numbers(r)}),
        names=("item", "user"),
    ),
    "sequential": Pattern(
        NextItem,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        lambda r: (_ids(r, 5), _ids(r)),
        whole_reads=("items/embeddings",),
    ),
    "collaborative": Pattern(Collaborative, "binary_crossentropy", lambda r: (_ids(r, 2), _numbers(r))),
    "wide and deep": Pattern(
        WideAndDeep,
        "mse",
        lambda r: ({"crossed": _ids(r, 2), "ids": _ids(r, 3)}, _numbers(r)),
        names=("crossed", "ids"),
    ),
}
LAYERS_ALONE = Pattern(_layers_alone, "mse", lambda r: (_ids(r, 2), _numbers(r)))
