"""A trainer that does what it is told, line by line: JSON on standard input, JSON on standard output.

{"do": "train", "user": 3, "item": 5, "steps": 2}    train on one pair
{"do": "spoil", "user": 7, "value": 1000}            every number of the row of one user becomes this
{"do": "save"} or {"do": "save_full"}                commit; answers with the position and what the model now predicts
"""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np

from hotdelta.keras import Adagrad, DeltaCheckpoint, Embedding
from tests.end_to_end.probes import NUM_ITEMS, NUM_USERS, PROBES


def build_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    user = keras.Input((), dtype="int64", name="user")
    item = keras.Input((), dtype="int64", name="item")
    product = keras.layers.Multiply()(
        [Embedding(NUM_USERS, 4, name="users")(user), Embedding(NUM_ITEMS, 4, name="items")(item)]
    )
    score = keras.layers.Dense(1, name="score")(keras.ops.sum(product, axis=-1, keepdims=True))
    model = keras.Model({"user": user, "item": item}, score)
    model.compile(Adagrad(0.5), "mse")
    return model


def main(directory: str) -> None:
    model = build_model()
    checkpoint = DeltaCheckpoint(directory, save_secs=None, save_incremental_secs=None)
    with checkpoint:
        resumed = checkpoint.resume(model)
        answer(checkpoint, model, resumed=resumed is not None)
        for line in sys.stdin:
            command = json.loads(line)
            match command["do"]:
                case "train":
                    train(model, checkpoint, **{name: command[name] for name in ("user", "item", "steps")})
                    print(json.dumps({}), flush=True)
                case "spoil":
                    row = keras.ops.full((1, 4), command["value"], "float32")
                    table = model.get_layer("users").embeddings
                    table.assign(keras.ops.scatter_update(table, [[command["user"]]], row))
                    print(json.dumps({}), flush=True)
                case "save":
                    checkpoint.save()
                    answer(checkpoint, model)
                case _:
                    checkpoint.save_full()
                    answer(checkpoint, model)


def train(model: keras.Model, checkpoint: DeltaCheckpoint, *, user: int, item: int, steps: int) -> None:
    """However often: towards a label that the model is never near, so that every step moves it."""
    pair = {"user": np.array([user]), "item": np.array([item])}
    for _ in range(steps):
        label = np.where(np.asarray(model(pair)) < 0, 1.0, -1.0).astype(np.float32)
        model.train_on_batch(pair, label)
        checkpoint.step()


def answer(checkpoint: DeltaCheckpoint, model: keras.Model, **more: Any) -> None:
    users, items = np.array(PROBES).T
    scores = np.asarray(model({"user": users, "item": items}), np.float32).reshape(-1)
    document = {"position": str(checkpoint.position), "bits": scores.view(np.uint32).tolist(), **more}
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
